"""Comparison of a bundle's graphs and tokenizer with the golden vectors of its manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from models.bundle import FP32, Bundle
from models.runtimes.graph import Graph
from models.runtimes.onnxruntime import OnnxRuntime


def golden_cosine(bundle: Bundle, *, runtime: str = OnnxRuntime.name, precision: str = FP32) -> float:
    """Return the minimum cosine between vectors of `runtime` and the golden vectors in the manifest."""
    return golden_cosine_of(Graph(bundle, runtime=runtime, precision=precision).encode, bundle)


def golden_cosine_of(encode: Callable[[Sequence[str]], NDArray[np.float32]], bundle: Bundle) -> float:
    """Return the minimum cosine between vectors of `encode` and the golden vectors in the manifest."""
    golden = bundle.manifest.golden
    embedded = encode([one.text for one in golden])
    remembered = np.array([one.vector for one in golden], dtype=np.float32)
    return float((embedded * remembered).sum(axis=1).min())
