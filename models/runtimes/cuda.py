"""ONNX Runtime's options for CUDA, and the warm-up batches of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from models.runtimes.base import Ids
from models.runtimes.session import CPU, CUDA, Provider

BATCH_TOKENS = 16_384
SHORTEST = 16
"""Length of the first bucket. Each bucket is twice as long as the previous one."""
OPTIONS = {
    # By default the arena doubles whenever it grows. Here the first batch of the warm-up is the largest, so exact
    # growth is enough.
    "arena_extend_strategy": "kSameAsRequested",
    # TF32 has only 10 bits of mantissa, but float32 is the reference for comparisons. fp16 is the fast option.
    "use_tf32": "0",
}
PROVIDERS: tuple[Provider, ...] = ((CUDA, OPTIONS), CPU)


def warm_up(run: Callable[[Ids, Ids], object], longest: int) -> None:
    """Call `run` with a full batch and with one text of each length.

    The first use loads kernels and allocates memory.
    """
    for length in reversed(list(buckets(longest))):
        for rows in (max(1, BATCH_TOKENS // length), 1):
            batch = np.ones((rows, length), dtype=np.int64)
            run(batch, batch)


def buckets(longest: int) -> Iterator[int]:
    """Yield lengths in tokens, ascending, up to `longest`."""
    length = SHORTEST
    while length < longest:
        yield length
        length *= 2
    yield longest
