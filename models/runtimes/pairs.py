"""Cross-encoder graphs on ONNX Runtime in float32: scores of pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.bundle.bundle import CROSS_ENCODER, FP32, Bundle, BundleError
from models.bundle.tokenizer import TextPair, padded_types
from models.runtimes.base import Embedded, Floats, Ids, Options
from models.runtimes.onnxruntime import OnnxRuntime

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
    """Return the scores (N,) of pairs on the CPU.

    Raises:
        BundleError: the bundle is not a cross-encoder.
    """
    runtime, tokenizer = PairRuntime(bundle, Options("cpu")), bundle.tokenizer
    batch = tokenizer.encode_pairs(pairs)
    ids, mask = tokenizer.pad(batch)
    return runtime.run(ids, mask, padded_types(batch, ids.shape), alone=True).vectors[:, 0]


def golden_difference(bundle: Bundle) -> float:
    """Return the largest difference between computed scores and the golden scores in the manifest."""
    golden = bundle.manifest.golden
    found = scores(bundle, [(one.text, one.text_pair or "") for one in golden])
    return largest_difference(found, [one.vector[0] for one in golden])


def largest_difference(found: Floats, expected: Sequence[float]) -> float:
    """Return the largest difference between two lists of scores, or NaN if a score is NaN.

    For scores above 1, the difference is relative.
    """
    remembered = np.array(expected)
    return float(np.max(np.abs(found - remembered) / np.maximum(np.abs(remembered), 1)))
