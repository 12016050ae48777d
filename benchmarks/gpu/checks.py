"""Tests that need a device: training and indexes on CUDA, and the contract tests of every runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.parts import Report, Setting
from models import cpus

FILES = ("tests/training/test_cuda.py", "tests/serving/corpora/indexes/test_gpu.py", "tests/models/test_runtimes.py")
NAMED = "cuda or gpu"
"""Pytest expression for all tests of the first two files, and for the last file's tests that use a device."""
WORKERS = 8
"""Number of test processes, which all use the device. If FAISS aborts, only one process ends."""
OPTIONAL = "TensorRT"
"""Runtime that the machine may lack. A skipped test of anything else counts as a failure."""
LAST_LINES = 4
"""Number of lines that are stored from the output of a failed test."""


def measure(setting: Setting, report: Report) -> None:
    """Run the tests. The results are stored per test file."""
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
            report.fail(f"{file}: skipped although there is a device: {'; '.join(skipped)}")


class Outcomes:
    """A pytest plugin that stores the outcome of each test immediately."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.by_file: dict[str, dict[str, Any]] = {
            file: {"passed": 0, "failed": 0, "skipped": 0, "why_skipped": Counter(), "failures": {}} for file in FILES
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count each test once: by the result of its call, or by a failure of its setup or teardown."""
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
        """Store the reason why a file could not be imported."""
        if report.failed and (file := Path(report.nodeid).as_posix()) in self.by_file:
            self.by_file[file]["failed"] += 1
            self.by_file[file]["failures"]["import"] = report.longreprtext.splitlines()[-LAST_LINES:]
            self._report.keep(file, self.by_file[file])
