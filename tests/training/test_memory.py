"""Memory that is mapped in huge pages, and kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FAULTS = """
import json, mmap, os, resource
import training.cli
from training.memory import keep_pages
import torch

def faults(map):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    map()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def advised():
    memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory[::4096] = bytes(len(memory) // 4096)

plain = faults(advised)
if os.fork() == 0:
    print(json.dumps([faults(lambda: torch.ones(16 << 20)) for _ in range(2)]), flush=True)
    os._exit(0)
os.wait()
keep_pages()
print(json.dumps([faults(lambda: torch.ones(16 << 20)) for _ in range(2)]))
print(max(plain, faults(advised)))
"""
"""Faults of 64 MB made twice, before `keep_pages` and after it; and the most where huge pages are plainly asked for."""
PAGES = 16_384
"""Of 4 kB, in 64 MB."""


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[madvise]" not in HUGE_PAGES.read_text(),
    reason="this system gives huge pages to everybody or to nobody",
)
def test_a_tensor_is_mapped_once_and_in_huge_pages() -> None:
    """As `python -m training` begins."""
    ended = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=120, check=True)
    before, kept, plain = map(json.loads, ended.stdout.splitlines())
    assert min(before) > PAGES // 2, "each time anew, in small pages"
    assert kept[1] < 2000, "the second time they are there"
    if plain > 1000:
        pytest.skip(f"this system has too few huge pages free: {plain} faults where 64 MB of them are asked for")
    assert sum(kept) < 4000
