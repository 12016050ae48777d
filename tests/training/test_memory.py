"""Memory that is mapped in huge pages, and kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FAULTS = """
import resource, sys
import training.cli
from training.memory import keep_pages
import torch
if "keep" in sys.argv:
    keep_pages()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(2):
    torch.ones(16 << 20)
print(faults() - before)
"""


def faults(*arguments: str) -> int:
    command = [sys.executable, "-c", FAULTS, *arguments]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout)


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[madvise]" not in HUGE_PAGES.read_text(),
    reason="this system gives huge pages to everybody or to nobody",
)
def test_a_tensor_is_mapped_once_and_in_huge_pages() -> None:
    """Of 64 MB, twice: 32,768 pages of 4 kB; as `python -m training` begins."""
    assert faults("keep") < 4000 < faults()
