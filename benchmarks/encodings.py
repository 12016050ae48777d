"""Loss of accuracy from quantisation: the seven STS tasks with float, int8 and binary versions of the same vectors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import cpus
from models.bundle import bundle, quantization
from models.runtimes import REFERENCE
from models.runtimes.graph import Graph
from training.evaluation import sts
from training.evaluation.pairs import Subsets, texts
from training.evaluation.suite import load_data
from training.evaluation.vectors import Encode

BUNDLE = Path("artifacts/minilm")
DATA = "ISOSPHERE_TEST_DATA"
"""Environment variable with the folder that has `senteval/downstream`, which `isosphere data get sts` downloads."""

Vectors = NDArray[np.float32]


def measure() -> dict[str, Any]:
    """Measure each encoding: Spearman × 100 over all pairs of a task ("all").

    Int8 vectors are compared by cosine, and binary vectors by Hamming distance.
    """
    from sentence_transformers.util.quantization import quantize_embeddings

    tasks = load_data(Path(os.environ[DATA]), ["sts"]).sts
    opened = bundle.load(BUNDLE)
    graph = Graph(opened, runtime=REFERENCE.runtime, precision=REFERENCE.precision, threads=cpus.available())
    sentences = texts(tasks)
    unit = graph.encode(sentences)
    calibration = graph.encode(quantization.calibration())
    encodings = dict(_encoded(unit, quantization.limit(calibration)))
    ranges = np.stack([calibration.min(axis=0), calibration.max(axis=0)])
    encodings["int8, a range a dimension"] = _as_floats(
        np.asarray(quantize_embeddings(unit, precision="int8", ranges=ranges))
    )
    row = {text: i for i, text in enumerate(sentences)}

    def encode(vectors: Vectors, wanted: Sequence[str]) -> Vectors:
        return vectors[[row[text] for text in wanted]]

    return {
        "protocol": measure.__doc__,
        "calibration_sentences": quantization.SENTENCES,
        "figures": {name: scores(partial(encode, vectors), tasks) for name, vectors in encodings.items()},
    }


def _encoded(unit: Vectors, limit: float) -> Iterator[tuple[str, Vectors]]:
    widths = [width for width in (unit.shape[1], 256, 128, 64) if width <= unit.shape[1]]
    for width in widths:
        yield f"float {width}", _as_floats(unit[:, :width])
    for width in widths:
        yield f"int8 {width}", _as_floats(quantization.int8(unit, limit)[:, :width])
        yield f"uint8 {width}", _as_floats(quantization.uint8(unit, limit)[:, :width])
        # For vectors of ±1, the cosine is 1 - 2 × Hamming distance / D, so both give the same ranking.
        yield f"binary {width}", _as_floats(np.where(unit[:, :width] > 0, 1, -1))


def _as_floats(vectors: NDArray[Any]) -> Vectors:
    return vectors.astype(np.float32)


def scores(encode: Encode, tasks: Mapping[str, Subsets]) -> dict[str, float]:
    """Return Spearman × 100 of each task, and their mean."""
    judged = sts.evaluate(encode, tasks)
    each = {task: round(score.spearman.all, 2) for task, score in judged.items()}
    return {**each, "mean": round(sts.mean_of_tasks(judged), 2)}
