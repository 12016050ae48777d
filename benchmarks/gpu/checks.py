"""Tests on a device: training and indexes on CUDA, and the contract of every runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.parts import Report, Setting
from models import cpus

FILES = ("tests/training/test_cuda.py", "tests/serving/corpora/indexes/test_gpu.py", "tests/models/test_runtimes.py")
NAMED = "cuda or gpu"
"""Test expression: all tests of the first two files by their modules' names, and the last file's tests of a device."""
WORKERS = 8
"""Number of processes, each with the device. If FAISS aborts, it ends one process and not the part."""
OPTIONAL = "TensorRT"
"""A runtime that a device may lack. Any other skipped test counts as a failure."""
LAST_LINES = 4
"""Lines of a failure that are kept."""


def measure(setting: Setting, report: Report) -> None:
    """Run the tests. Figures are per test file."""
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
    """A pytest plugin that stores the outcome of each test at once."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.by_file: dict[str, dict[str, Any]] = {
            file: {"passed": 0, "failed": 0, "skipped": 0, "why_skipped": Counter(), "failures": {}} for file in FILES
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: by its call, or by a failure before or after the call."""
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
        """Store why a file could not be imported."""
        if report.failed and (file := Path(report.nodeid).as_posix()) in self.by_file:
            self.by_file[file]["failed"] += 1
            self.by_file[file]["failures"]["import"] = report.longreprtext.splitlines()[-LAST_LINES:]
            self._report.keep(file, self.by_file[file])
