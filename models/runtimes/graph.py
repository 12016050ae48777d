"""Encoding of texts, and scores of pairs, with a bundle's graph on this machine, in the same way as in a server."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from models.bundle.bundle import CROSS_ENCODER, ENCODER, FP32, Bundle, BundleError
from models.bundle.tokenizer import CHARACTERS_PER_TOKEN, TextPair, Tokens, padded_types
from models.names import Device
from models.runtimes import RUNTIMES
from models.runtimes.base import Embedded, Floats, Ids, Options, Runtime
from models.runtimes.onnxruntime import OnnxRuntime


class Graph:
    """A bundle's encoder on this machine: its tokenizer and a runtime. The runtime is given by name or as an object.

    `threads=None` means all CPUs that the quota allows.

    Raises:
        BundleError: the bundle is a cross-encoder, or has no graph of this precision.
        RuntimeUnavailable: the runtime can't run on this machine or in this precision.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        runtime: str | Runtime = OnnxRuntime.name,
        precision: str = FP32,
        threads: int | None = None,
        device: Device = "cpu",
    ) -> None:
        if bundle.manifest.kind != ENCODER:
            raise BundleError(f"{bundle.folder}: a {bundle.manifest.kind}, which computes no vectors of texts")
        if isinstance(runtime, str):
            runtime = RUNTIMES[runtime](bundle, precision, Options(device, threads))
        self._runtime = runtime
        self._tokenizer = bundle.tokenizer
        self.precision = self._runtime.precision
        self.device = self._runtime.device
        self.dim = bundle.manifest.dim
        self.runtime = self._runtime.name
        self.engine = f"{self.runtime} {self._runtime.facts()['version']}"

    def tokenized(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenise texts, truncated to the bundle's `max_length` tokens.

        As in the server, each text is first cut to `max_length` × `CHARACTERS_PER_TOKEN` characters.

        Raises:
            ValueError: a text is not valid Unicode.
        """
        limit = self._tokenizer.max_length * CHARACTERS_PER_TOKEN
        tokens = self._tokenizer.encode([text[:limit] for text in texts])
        return [
            replace(one, length=max(one.length, len(one) + 1)) if len(text) > limit else one
            for one, text in zip(tokens, texts, strict=True)
        ]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the unit vectors (N, D) of `texts` in their order."""
        return self.embed(self.tokenized(texts)).vectors

    def embed(self, tokens: Sequence[Tokens], done: Callable[[int], object] = lambda _: None) -> Embedded:
        """Return the unit vectors (N, D) and norms (N,) of N tokenised texts, in the order of `tokens`.

        Batches contain texts of similar length and run in parallel. After each batch, a thread calls `done` with the
        number of texts in this batch. Several threads may call `done` at the same time.
        """
        vectors = np.empty((len(tokens), self.dim), dtype=np.float32)
        norms = np.empty(len(tokens), dtype=np.float32)
        share = math.ceil(sum(map(len, tokens)) / self._runtime.streams)
        batches = list(_by_length(tokens, min(share, self._runtime.batch_tokens)))

        def run(rows: list[int]) -> None:
            padded = self._tokenizer.pad([tokens[i] for i in rows])
            vectors[rows], norms[rows] = self._runtime.run(*padded, alone=len(batches) == 1)
            done(len(rows))

        with ThreadPoolExecutor(self._runtime.streams) as threads:
            deque(threads.map(run, batches), maxlen=0)
        return Embedded(vectors, norms)


def _by_length(tokens: Sequence[Tokens], budget: int) -> Iterator[list[int]]:
    """Yield batches of text indices, each with at most `budget` tokens including padding.

    A text with more than `budget` tokens is a batch of its own. The longest texts come first, so that a lack of memory
    shows in the first batch.
    """
    batch: list[int] = []
    for i in sorted(range(len(tokens)), key=lambda i: -len(tokens[i])):
        if batch and (len(batch) + 1) * len(tokens[batch[0]]) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def golden_cosine(bundle: Bundle, *, precision: str = FP32) -> float:
    """Return the minimum cosine between vectors of ONNX Runtime and the golden vectors in the manifest."""
    return golden_cosine_of(Graph(bundle, precision=precision).encode, bundle)


def golden_cosine_of(encode: Callable[[Sequence[str]], NDArray[np.float32]], bundle: Bundle) -> float:
    """Return the minimum cosine between vectors of `encode` and the golden vectors in the manifest."""
    golden = bundle.manifest.golden
    embedded = encode([one.text for one in golden])
    remembered = np.array([one.vector for one in golden], dtype=np.float32)
    remembered /= np.linalg.norm(remembered, axis=1, keepdims=True).clip(1e-12)
    return float((embedded * remembered).sum(axis=1).min())


# Cross-encoder graphs on ONNX Runtime in float32: scores of pairs of texts.

SCORE = "score"
"""Name of the graph's output with the scores (N,)."""
GOLDEN_DIFFERENCE = 0.01
"""Maximum difference from a golden score at which a runtime may serve the bundle.

For scores above 1, the difference is relative.
"""


class PairRuntime(OnnxRuntime):
    """ONNX Runtime with a cross-encoder's graph. Each score is returned as a vector of one dimension."""

    def __init__(self, bundle: Bundle, options: Options) -> None:
        if bundle.manifest.kind != CROSS_ENCODER:
            raise BundleError(f"{bundle.folder}: an encoder, which can't score pairs")
        super().__init__(bundle, FP32, options)

    def run(self, ids: Ids, mask: Ids, types: Ids | None = None, *, alone: bool = False) -> Embedded:
        session = self._alone if alone else self._concurrent
        (scores,) = session.outputs([SCORE], ids, mask, types)
        return Embedded(scores[:, None], np.ones_like(scores))


def scores(bundle: Bundle, pairs: Sequence[TextPair]) -> Floats:
    """Compute the scores (N,) of N pairs of texts, on the CPU.

    Raises:
        BundleError: the bundle is not a cross-encoder.
    """
    runtime, tokenizer = PairRuntime(bundle, Options("cpu")), bundle.tokenizer
    batch = tokenizer.encode_pairs(pairs)
    ids, mask = tokenizer.pad(batch)
    return runtime.run(ids, mask, padded_types(batch, ids.shape), alone=True).vectors[:, 0]


def golden_difference(bundle: Bundle) -> float:
    """Return the largest difference between scores computed on this machine and the golden scores in the manifest.

    See `largest_difference`.
    """
    golden = bundle.manifest.golden
    found = scores(bundle, [(one.text, one.text_pair or "") for one in golden])
    return largest_difference(found, [one.vector[0] for one in golden])


def largest_difference(found: Floats, expected: Sequence[float]) -> float:
    """Return the largest absolute difference between found and expected scores (N,), or NaN if a score is NaN.

    If the absolute value of an expected score is above 1, its difference is divided by this value.
    """
    remembered = np.array(expected)
    return float(np.max(np.abs(found - remembered) / np.maximum(np.abs(remembered), 1)))
