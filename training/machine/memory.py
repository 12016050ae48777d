"""Memory of a process that trains on a CPU: in huge pages where there are any, and kept for the next step.

A step takes and gives back gigabytes, in blocks of megabytes. Left to themselves, allocator and kernel map their pages
anew each time, 4 kB at a go; on two cores that was a tenth of a step (docs/log.md).
"""

from __future__ import annotations

import ctypes
import os
import sys

KERNELS = 256
"""Matrix products for which oneDNN keeps what it compiled: those of the numbers of tokens that steps are filled up to
(`training.passes.packing.GRANULE`). It would keep 1024; those of attention seldom recur: memory would only grow."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""


def keep_pages() -> None:
    """For the whole process, and before torch has made its first tensor: it reads the variables then.

    `mallopt` is for Linux and glibc; elsewhere pages are not kept.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 2**30)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
