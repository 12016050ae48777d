"""Tests of the number of source files that a request passes through, because a reader has to open all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.ways import changes, recorded_calls, ways


def test_a_request_passes_through_few_files(tmp_path: Path) -> None:
    with recorded_calls() as calls:
        found = asyncio.run(ways(tmp_path, calls))
    embed, search = found["POST /embed"], found["search"]
    assert 10 < len(set(embed)) <= 25
    assert changes(embed) <= 80
    assert 20 < len(set(search)) <= 38
