"""Tests of memory in huge pages, and of freed memory that is kept."""

from __future__ import annotations

import ctypes
import mmap
import resource
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest
import torch

from tests.conftest import PATIENCE
from tests.training.forks import SERVER, forked
from training.machine.memory import MMAP_THRESHOLD, reuse_memory

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PAGES = 16_384
"""Number of pages of 4 kB in 64 MB."""


def faults(map: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    map()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def advised() -> None:
    """Map 64 MB with explicitly requested huge pages."""
    memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory[::4096] = bytes(len(memory) // 4096)


def made(keep: bool, told: Connection) -> None:
    """Send the page faults of allocating 64 MB twice, with or without kept memory, and of `advised`."""
    if keep:
        reuse_memory()
    told.send(([faults(lambda: torch.ones(16 << 20)) for _ in range(2)], faults(advised)))


def told_of(keep: bool) -> tuple[list[int], int]:
    found, told = SERVER.Pipe(duplex=False)
    process = forked(made, keep, told)
    process.join(PATIENCE)
    assert process.exitcode == 0
    return cast(tuple[list[int], int], found.recv())


def test_an_older_c_library_gets_the_largest_threshold_that_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds: dict[int, int] = {}

    def mallopt(parameter: int, value: int) -> int:
        if parameter == MMAP_THRESHOLD and value > 32 << 20:
            return 0
        thresholds[parameter] = value
        return 1

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Mock(mallopt=mallopt))
    for name in ("THP_MEM_ALLOC_ENABLE", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        monkeypatch.setenv(name, "1")
    reuse_memory()
    assert thresholds[MMAP_THRESHOLD] == 32 << 20


@pytest.mark.slow
@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[madvise]" not in HUGE_PAGES.read_text(),
    reason="this system gives huge pages to everybody or to nobody",
)
def test_a_tensor_is_mapped_once_and_in_huge_pages() -> None:
    before, *plain = told_of(keep=False)
    kept, *later = told_of(keep=True)
    assert min(before) > PAGES // 2, "each time anew, in small pages"
    assert kept[1] < 2000, "the second time they are there"
    if (most := max(plain + later)) > 1000:
        pytest.skip(f"this system has too few huge pages free: {most} faults where 64 MB of them are asked for")
    assert sum(kept) < 4000
