"""Small runs of `isosphere pretrain` for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from training import cli
from training.checkpoints.speed import FIGURES

Capture = pytest.CaptureFixture[str]

TINY = ["layers=1", "width=32", "heads=2", "max_length=32", "batch_size=8", "precision=fp32", "device=cpu"]


def call(*arguments: str) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def metrics(run: str) -> list[dict[str, Any]]:
    """Return the metrics that do not depend on the clock."""
    lines = map(json.loads, (Path(run) / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in FIGURES} for line in lines]
