"""What ONNX Runtime is told about CUDA, and the batches that a graph meets there before anyone waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from models.runtimes.base import Ids
from models.runtimes.session import CPU, CUDA, Provider

BATCH_TOKENS = 16_384
SHORTEST = 16
"""The first bucket's length; each is twice as long as the one before."""
OPTIONS = {
    # By default the arena doubles whenever it grows; here the first batch of the warm-up is the largest of all.
    "arena_extend_strategy": "kSameAsRequested",
    # TF32 has 10 bits of mantissa: float32 is what everything else is compared with. Who wants speed has fp16.
    "use_tf32": "0",
}
PROVIDERS: tuple[Provider, ...] = ((CUDA, OPTIONS), CPU)


def warm_up(run: Callable[[Ids, Ids], object], longest: int) -> None:
    """Let `run` meet every bucket, full and with one text: kernels load, and the arena grows, at their first use."""
    for length in reversed(list(buckets(longest))):
        for rows in (max(1, BATCH_TOKENS // length), 1):
            batch = np.ones((rows, length), dtype=np.int64)
            run(batch, batch)


def buckets(longest: int) -> Iterator[int]:
    """Lengths in tokens, ascending, the last one `longest`."""
    length = SHORTEST
    while length < longest:
        yield length
        length *= 2
    yield longest
