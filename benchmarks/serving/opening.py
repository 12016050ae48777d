"""Time from a server's restart to its first search, with the corpus's files in the page cache or only on disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.search.corpus import Ours
from benchmarks.search.mixture import on_disk
from benchmarks.serving.processes import read_bytes

SIZES = (100_000, 1_000_000)
DIM = 384
ROUNDS = 5


def measure() -> dict[str, Any]:
    """Return the seconds from opening a closed store to the first hit, and the bytes read, for each size.

    The store is opened once with its files in the page cache, and once without.
    """
    return {"figures": {f"{size:,}": _opened(size) for size in SIZES}}


def _opened(size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = Ours(folder / "ours")
        ours.add(on_disk(folder / "base.npy", size, DIM))
        figures: dict[str, Any] = {"kind": ours.build()["kind"]}
        figures |= {f"{part}_mb": round(of_part / 1e6, 1) for part, of_part in ours.bytes().items()}
        seconds: dict[str, list[float]] = {"warm": [], "cold": []}
        read: dict[str, list[float]] = {"warm": [], "cold": []}
        for _ in range(ROUNDS):
            for kind in ("warm", "cold"):
                ours.corpora.close()
                if kind == "cold":
                    forget(folder)
                before = read_bytes(os.getpid())
                seconds[kind].append(ours.opened())
                read[kind].append((read_bytes(os.getpid()) - before) / 1e6)
        ours.corpora.close()
    for kind, taken in seconds.items():
        figures[f"{kind}_s"] = round(median(taken), 3)
        figures[f"{kind}_s_most"] = round(max(taken), 3)
        figures[f"{kind}_read_mb"] = round(median(read[kind]), 1)
    return figures


def forget(folder: Path) -> None:
    """Remove the files in a folder from the page cache, so that the next reader waits for the disk."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # Data must be written to the disk before it can be dropped from the cache.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
