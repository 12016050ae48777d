"""Memory settings for training on a CPU: use huge pages if available, and keep freed memory for the next step.

A step allocates and frees gigabytes in blocks of megabytes. By default, each allocation maps new pages of 4 kB. On two
cores, this mapping took a tenth of a step's time (docs/log.md).
"""

from __future__ import annotations

import ctypes
import os
import sys

KERNELS = 256
"""Capacity of oneDNN's cache of compiled matrix products.

Steps are padded to few different numbers of tokens (`training.encoding.packing.GRANULE`), so 256 products suffice. The
default of 1024 would only use more memory, because attention's shapes seldom recur.
"""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of two parameters of glibc's mallopt(3)."""


def reuse_memory() -> None:
    """Make the process use huge pages, and keep freed memory for later allocations.

    The huge pages and a smaller cache of oneDNN are set by environment variables. Call this function before torch
    creates its first tensor, because torch reads the variables at that time.

    Freed memory is kept by calls of `mallopt`, which needs Linux and glibc. Other systems don't keep it.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        # Older versions of glibc accept at most 32 MB here. Without a value, the next line would fix it at 128 kB.
        mallopt(MMAP_THRESHOLD, 2**30) or mallopt(MMAP_THRESHOLD, 2**25)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
