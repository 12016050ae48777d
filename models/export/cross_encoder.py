"""Export of a cross-encoder to a bundle: weights, tokenizer, and a verified ONNX graph that scores pairs of texts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models import cpus
from models.bundle import bundle
from models.bundle.bundle import CROSS_ENCODER, Bundle, Golden
from models.bundle.disk import naming
from models.bundle.sources import SourceError
from models.bundle.tokenizer import TextPair, padded_types
from models.encoder.cross_encoder import CrossEncoder
from models.encoder.encoder import dropout_off
from models.export import destination
from models.export.export import GOLDEN_SENTENCES, PARITY, ExportError
from models.export.exporters import INPUTS, trace
from models.runtimes.graph import SCORE, largest_difference
from models.runtimes.onnxruntime import CPU, Session

TYPES = "token_type_ids"
GOLDEN_PAIRS: Sequence[TextPair] = [("How do I read a file line by line?", text) for text in GOLDEN_SENTENCES[:5]] + [
    ("Who plays music?", text) for text in GOLDEN_SENTENCES[:5]
]


def export(
    encoder: CrossEncoder, folder: Path, *, name: str, backbone: str, run: Mapping[str, Any] | None = None
) -> Bundle:
    """Write `encoder` as a verified bundle, atomically. After an error, `folder` is unchanged.

    Raises:
        ExportError: ONNX Runtime's scores differ from torch's by more than `PARITY`.
        SourceError: the score of one of the `GOLDEN_PAIRS` is not finite, or all these pairs have the same score.
        bundle.BundleError: `folder` contains files that are not part of a bundle, or the new bundle is invalid.
        OSError: the bundle can't be written; the message names `folder`.
    """
    golden = encoder.scores(GOLDEN_PAIRS)
    if not np.isfinite(golden).all():
        raise SourceError("the cross-encoder's score of a pair is not finite")
    if np.ptp(golden) == 0:
        raise SourceError("the cross-encoder gives all pairs the same score")
    with naming(folder), destination.writing(folder) as draft:
        encoder.save(draft)
        (draft / "onnx").mkdir()
        write_onnx(encoder, draft / bundle.ONNX)
        parity = check_parity(encoder, draft / bundle.ONNX)
        facts = {
            "kind": CROSS_ENCODER,
            "name": name,
            "objective": None,
            "backbone": backbone,
            "dim": 1,
            "max_length": encoder.max_length,
            "pooling": "classifier",
            "run": run and dict(run),
            "scores": {"onnx_parity": parity},
            "golden": [
                Golden(text=query, text_pair=text, vector=[float(score)])
                for (query, text), score in zip(GOLDEN_PAIRS, golden, strict=True)
            ],
        }
        destination.seal(draft, facts, encoder.origin)
    return bundle.load(folder)


def write_onnx(encoder: CrossEncoder, file: Path) -> None:
    """Write the float32 graph from token ids, mask and types (N, L) to scores (N,), with dynamic batch and length."""
    inputs = {**INPUTS, TYPES: {0: "batch", 1: "length"}} if encoder.reads_types else INPUTS
    example = encoder.tensors(encoder.tokenizer.encode_pairs([("a question", "an example of a text"), ("a", "short")]))
    with dropout_off(encoder), warnings.catch_warnings():
        # The tracer warns about every shape that it reads. The warnings are not needed, because parity is checked.
        warnings.simplefilter("ignore")
        trace(encoder, example, file, inputs=inputs, outputs={SCORE: {0: "batch"}})


def check_parity(encoder: CrossEncoder, file: Path) -> float:
    """Return the largest difference between scores of ONNX Runtime and torch, over short, long, empty and padded pairs.

    If torch's score is above 1 or below -1, the difference is relative.

    Raises:
        ExportError: the difference exceeds `PARITY`.
    """
    session, worst = Session(file, [CPU], cpus.available()), 0.0
    long = " ".join(GOLDEN_SENTENCES * (encoder.max_length // 40 + 1))
    cases: dict[str, Sequence[TextPair]] = {
        "a short pair": [("a", "b")],
        "a pair of the maximal length": [(long, long)],
        "an empty pair": [("", "")],
        "a padded batch": [*GOLDEN_PAIRS, ("a", long), (long, "")],
    }
    for case, pairs in cases.items():
        batch = encoder.tokenizer.encode_pairs(pairs)
        ids, mask = encoder.tokenizer.pad(batch)
        (got,) = session.outputs([SCORE], ids, mask, padded_types(batch, ids.shape))
        difference = largest_difference(got, encoder.scores(pairs).tolist())
        if not difference <= PARITY:  # This form of the comparison also refuses NaN.
            raise ExportError(f"{case}: ONNX Runtime differs from torch by {difference:.2e}, more than {PARITY:.0e}")
        worst = max(worst, difference)
    return worst
