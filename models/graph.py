"""A bundle's ONNX graph, run on this machine's CPU: the vectors that a server gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.bundle import FP32, Bundle, BundleError
from models.tokenizer import Tokenizer, Tokens

BATCH_TOKENS = 2048
"""Padded tokens of a batch at most, or one text: more of them at once are no quicker on a CPU."""


class Graph:
    """ONNX Runtime on one of the graphs of a bundle.

    Raises:
        BundleError: the bundle has no graph of this precision; the message names those it has.
    """

    def __init__(self, bundle: Bundle, *, precision: str = FP32) -> None:
        if precision not in bundle.graphs:
            raise BundleError(f"{bundle.folder}: no {precision} graph; there is {', '.join(bundle.graphs)}")
        self.precision = precision
        self.dim = bundle.manifest.dim
        self.engine = f"onnxruntime {ort.__version__}"
        self._tokenizer = Tokenizer(bundle.tokenizer_file, max_length=bundle.manifest.max_length)
        settings = ort.SessionOptions()
        settings.enable_mem_pattern = False  # plans are kept per shape, and here every batch has its own
        file = str(bundle.graphs[precision])
        self._session = ort.InferenceSession(file, settings, providers=["CPUExecutionProvider"])

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (N, D) of `texts` in their order; batches are cut by length."""
        tokens = self._tokenizer.encode(texts)
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for rows in _by_length(tokens):
            ids, mask = self._tokenizer.pad([tokens[i] for i in rows])
            (vectors[rows],) = self._session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})
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
