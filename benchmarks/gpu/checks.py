"""The tests that a device has to pass: training and indexes on CUDA, and the contract of every runtime there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.report import Report
from benchmarks.gpu.setting import Setting
from models import cpus

FILES = ("tests/training/test_cuda.py", "tests/serving/indexes/test_gpu.py", "tests/models/test_runtimes.py")
NAMED = "cuda or gpu"
"""All tests of the first two files by the names of their modules, and of the last one those of a device."""
WORKERS = 8
"""Processes, each with the device: a FAISS that aborts ends one of them and not the part."""
OPTIONAL = "TensorRT"
"""What a device may lack. Any other test that is skipped there proves nothing, and so counts as a failure."""
LAST_LINES = 4
"""Of a failure."""


def measure(setting: Setting, report: Report) -> None:
    """Run the tests; a figure is a file of them."""
    workers = min(WORKERS, cpus.available() // 2)
    spread = ("-n", str(workers)) if workers > 1 else ()
    outcomes = Outcomes(report)
    options = ("-q", "--continue-on-collection-errors", "-k", NAMED, *spread)
    code = pytest.main([*options, *FILES], plugins=[outcomes])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        report.fail(f"pytest: {pytest.ExitCode(code).name}")
    for file, figures in outcomes.by_file.items():
        if figures["failed"]:
            report.fail(f"{file}: {figures['failed']} failed")
        skipped = [reason for reason in figures["why_skipped"] if OPTIONAL not in reason]
        if setting.device == "cuda" and skipped:
            report.fail(f"{file}: skipped where there is a device: {'; '.join(skipped)}")


class Outcomes:
    """A plugin of pytest that stores what becomes of each test as soon as it is known."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.by_file: dict[str, dict[str, Any]] = {
            file: {"passed": 0, "failed": 0, "skipped": 0, "why_skipped": Counter(), "failures": {}} for file in FILES
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: by its call, or by what went wrong before or after it."""
        if report.when != "call" and report.passed:
            return
        file, _, name = report.nodeid.partition("::")
        figures = self.by_file[file]
        figures[report.outcome] += 1
        if report.failed:
            figures["failures"][name] = report.longreprtext.splitlines()[-LAST_LINES:]
        elif isinstance(report.longrepr, tuple):
            figures["why_skipped"][report.longrepr[2].removeprefix("Skipped: ")] += 1
        self._report.keep(file, figures)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Store why a file could not be read."""
        if report.failed and (file := Path(report.nodeid).as_posix()) in self.by_file:
            self.by_file[file]["failed"] += 1
            self.by_file[file]["failures"]["import"] = report.longreprtext.splitlines()[-LAST_LINES:]
            self._report.keep(file, self.by_file[file])
