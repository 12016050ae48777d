"""Tests of checksums: each flipped bit, misplaced page or zeroed page changes the checksum of its piece only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.corpora.indexes import saved
from serving.corpora.indexes.saved import checksums as of

PAGE = 4096
CONTENT = np.random.default_rng(0).integers(0, 256, 5 * 64 * PAGE + 1237, dtype=np.uint8).tobytes()


@pytest.fixture(autouse=True)
def pieces_of_64_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "PIECE", 64 * PAGE)


def damaged(folder: Path, content: bytes) -> list[int]:
    (folder / "file").write_bytes(content)
    return of(folder / "file", 1)


@pytest.mark.slow
@settings(max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(st.tuples(st.integers(0, len(CONTENT) - 1), st.integers(0, 7)), min_size=1, max_size=2, unique=True)
)
def test_one_flip_or_two(tmp_path: Path, places: list[tuple[int, int]]) -> None:
    flipped = bytearray(CONTENT)
    for at, bit in places:
        flipped[at] ^= 1 << bit
    before, after = damaged(tmp_path, CONTENT), damaged(tmp_path, bytes(flipped))
    changed = {at for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other}
    assert changed == {at // (64 * PAGE) for at, _ in places}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=st.integers(0, 319), other=st.integers(0, 319))
def test_pages_in_each_others_place_or_gone(tmp_path: Path, one: int, other: int) -> None:
    before = damaged(tmp_path, CONTENT)
    pages = bytearray(CONTENT)
    first, second = (slice(page * PAGE, (page + 1) * PAGE) for page in (one, other))
    pages[first], pages[second] = pages[second], pages[first]
    assert (damaged(tmp_path, bytes(pages)) == before) == (one == other)
    pages = bytearray(CONTENT)
    pages[first] = bytes(PAGE)
    assert damaged(tmp_path, bytes(pages)) != before


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 1020 * 8, 1024 * 8 + 3, 64 * PAGE, 64 * PAGE + 1])
def test_any_length(tmp_path: Path, length: int) -> None:
    whole = damaged(tmp_path, CONTENT[:length])
    assert len(whole) == -(-length // (64 * PAGE))
    assert of(tmp_path / "file", 3) == whole
