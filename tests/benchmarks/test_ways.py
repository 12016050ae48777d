"""Tests of the number of source files of a request and of a training step, because a reader has to open all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.ways import changes, recorded_calls, training_way, ways


def test_a_request_passes_through_few_files(tmp_path: Path) -> None:
    with recorded_calls() as calls:
        found = asyncio.run(ways(tmp_path, calls))
    embed, search = found["POST /embed"], found["search"]
    assert 10 < len(set(embed)) <= 25
    assert changes(embed) <= 80
    assert 20 < len(set(search)) <= 38


def test_a_training_step_passes_through_few_files(tiny_backbone: Path, tmp_path: Path) -> None:
    with recorded_calls() as calls:
        assert 10 < len(set(training_way(tmp_path, calls, str(tiny_backbone)))) <= 15
