"""Tests of the command `python -m benchmarks`."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path

import pytest

from benchmarks import __main__ as command


def test_all_results_name_the_commit_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = count()
    measured = {"first": lambda: {"figures": {"a": 1}}, "second": lambda: {"figures": {"a": 2}}}
    monkeypatch.setattr(command, "BENCHMARKS", measured)
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "surroundings", lambda: {"git_commit": next(commits)})
    monkeypatch.setattr(sys, "argv", ["benchmarks", *measured])
    command.main()
    kept = [json.loads((tmp_path / f"{name}.json").read_text()) for name in measured]
    assert [(one["git_commit"], one["figures"]["a"]) for one in kept] == [(0, 1), (0, 2)]
