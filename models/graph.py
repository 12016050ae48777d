"""A bundle's graph, run on this machine: the vectors that a server gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from models.bundle import FP32, Bundle
from models.runtimes import RUNTIMES
from models.runtimes.base import Device, Options
from models.runtimes.onnxruntime import OnnxRuntime
from models.tokenizer import Tokenizer, Tokens

BATCH_TOKENS = 2048
"""Padded tokens of a batch at most, or one text: more of them at once are no quicker on a CPU."""


class Graph:
    """Texts to vectors: the bundle's tokenizer and one of the runtimes.

    `threads` None leaves their number to the runtime.

    Raises:
        BundleError: the bundle has no graph of this precision; the message names those it has.
        RuntimeUnavailable: the runtime can't run here, or not in this precision.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        runtime: str = OnnxRuntime.name,
        precision: str = FP32,
        threads: int | None = None,
        device: Device = "cpu",
    ) -> None:
        self._runtime = RUNTIMES[runtime](bundle, precision, Options(device, threads))
        self._tokenizer = Tokenizer(bundle.tokenizer_file, max_length=bundle.manifest.max_length)
        self.precision = precision
        self.device = self._runtime.device
        self.dim = bundle.manifest.dim
        self.engine = f"{runtime} {self._runtime.facts()['version']}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (N, D) of `texts` in their order; batches are cut by length."""
        tokens = self._tokenizer.encode(texts)
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for rows in _by_length(tokens):
            vectors[rows] = self._runtime.run(*self._tokenizer.pad([tokens[i] for i in rows])).vectors
        return vectors


def _by_length(tokens: Sequence[Tokens]) -> Iterator[list[int]]:
    """The longest first, so that a lack of memory shows at once."""
    batch: list[int] = []
    for i in sorted(range(len(tokens)), key=lambda i: -len(tokens[i])):
        if batch and (len(batch) + 1) * len(tokens[batch[0]]) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
