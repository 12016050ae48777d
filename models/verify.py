"""Do a bundle's graphs and tokenizer still give the vectors its manifest remembers?"""

from __future__ import annotations

import numpy as np

from models.bundle import FP32, Bundle
from models.graph import Graph
from models.runtimes.onnxruntime import OnnxRuntime


def golden_cosine(bundle: Bundle, *, runtime: str = OnnxRuntime.name, precision: str = FP32) -> float:
    """The lowest cosine of a golden sentence, embedded by `runtime` now, to its vector in the manifest."""
    golden = bundle.manifest.golden
    embedded = Graph(bundle, runtime=runtime, precision=precision).encode([one.text for one in golden])
    remembered = np.array([one.vector for one in golden], dtype=np.float32)
    return float((embedded * remembered).sum(axis=1).min())
