"""Encoder to bundle: weights, tokenizer, the files sentence-transformers reads, and an ONNX graph proven equal.

The graph ends at the unit vector, so that nobody downstream needs to know the pooling; `norm` beside it, the
length of the pooled vector, is what `normalize: false` multiplies back.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from models import bundle, codes, cpus, destination, fp16, sentence_transformers_format, transform
from models.bundle import Bundle, BundleError, Golden
from models.disk import naming
from models.encoder import Encoder, dropout_off
from models.errors import Failed
from models.exporters import EXPORTERS
from models.runtimes.base import Embedded, Options
from models.runtimes.choice import Choice
from models.runtimes.session import CPU, Session
from models.sources import SourceError
from models.tokenizer import Tokens
from models.unit_vector import SHORTEST, UnitVector
from models.verify import golden_cosine_of

log = logging.getLogger(__name__)

PARITY = 1e-4
"""Largest allowed difference of any coordinate of a unit vector, ONNX against torch."""
AGAIN = 0.9999
"""Least cosine to its golden vectors at which an encoder is the same still."""

SAME = 1e-6
"""Largest difference of a coordinate at which vectors of different texts are taken to be one."""

GOLDEN_SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "A man is playing a guitar on the stage.",
    "Somebody performs music for an audience.",
    "The central bank raised interest rates by half a percentage point.",
    "How do I read a file line by line?",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "No.",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "x = [i ** 2 for i in range(10)]",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
)


class ExportError(Failed):
    """The exported graph does not compute what the encoder computes."""


def export(
    encoder: Encoder,
    folder: Path,
    *,
    name: str,
    backbone: str,
    objective: str | None = None,
    run: dict[str, Any] | None = None,
    scores: dict[str, float] | None = None,
    citations: Sequence[str] = (),
    exporter: str = "torch",
    again: Bundle | None = None,
    adapter: Mapping[str, Any] | None = None,
    half: bool = False,
    measured: Options | None = None,
    chosen: Callable[[Choice], object] = lambda _: None,
) -> Bundle:
    """Write `encoder` as a bundle, atomically: `folder` is a whole, verified bundle or what it was before.

    `citations`, BibTeX, are of how it was trained; the card has them before those of its origin. `exporter` is one of
    `models.exporters.EXPORTERS`. `again` is a bundle of this very encoder: its config.json, and thereby its
    fingerprint, is kept (each version of transformers writes out other defaults), if its golden vectors come out
    again. `adapter` says what its weights were merged from, if they were (`models.adapter`). `half` asks for a float16
    graph beside the float32 one. Where `measured` is given, the runtimes of this machine are compared under these
    options and their table goes into the bundle; `chosen` hears what came of it.

    Raises:
        ExportError: ONNX Runtime's vectors differ from torch's by more than `PARITY`, or torch's from those of `again`,
            or the float16 graph's by more than an engine's may.
        ExporterUnavailable: `exporter` is not to be had here, or not for this backbone.
        SourceError: the vectors of `encoder` have no direction, or all the same.
        bundle.BundleError: `folder` holds something that is not a bundle, or what is made here is none: its name.
        OSError: the bundle can't be written; names `folder`.
    """
    check_prompts(encoder)
    check_vectors(encoder)
    with naming(folder), destination.writing(folder) as draft:
        encoder.save(draft)
        if again:
            check_again(encoder, again)
            shutil.copyfile(again.folder / "config.json", draft / "config.json")
        sentence_transformers_format.write(encoder, draft)
        (draft / "onnx").mkdir()
        write_onnx(encoder, draft / bundle.ONNX, exporter)
        parity = check_parity(encoder, draft / bundle.ONNX)
        if half:
            write_fp16(encoder, draft / bundle.ONNX, draft / bundle.FP16_ONNX)
        golden = unit_vectors(encoder, GOLDEN_SENTENCES)
        codes.write(codes.limit(unit_vectors(encoder, codes.calibration())), draft / bundle.INT8)
        facts = {
            "name": name,
            "objective": objective,
            "backbone": backbone,
            "dim": encoder.dim,
            "max_length": encoder.max_length,
            "pooling": encoder.pooling,
            "prompts": encoder.prompts,
            "transform": transform.described(encoder.transform),
            "run": run,
            "scores": {**(scores or {}), "onnx_parity": parity},
            "adapter": adapter and dict(adapter),
            "golden": [Golden(text=t, vector=v.tolist()) for t, v in zip(GOLDEN_SENTENCES, golden, strict=True)],
        }
        destination.seal(draft, facts, encoder.origin, citations, measured=measured, chosen=chosen)
    return bundle.load(folder)


def write_onnx(encoder: Encoder, file: Path, exporter: str = "torch") -> None:
    """The float32 graph of `UnitVector(encoder)`, batch and length dynamic, by one of `EXPORTERS`.

    `eval()` is called on the outermost module: torch's exporter restores that module's mode while tracing, and would
    otherwise leave dropout in the graph.

    Raises:
        ExporterUnavailable: this exporter is not to be had here, or not for this backbone.
    """
    graph = UnitVector(encoder)
    with dropout_off(graph), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns of every shape it reads; parity below is the check
        EXPORTERS[exporter](graph, file)


def write_fp16(encoder: Encoder, graph: Path, file: Path) -> None:
    """The float16 graph of the float32 one in `graph`, its attention fused where that leaves the vectors as they are.

    Raises:
        ExportError: a vector of it has a cosine to torch's below `bundle.GOLDEN_COSINE`.
    """
    fp16.fuse(graph, file, encoder.backbone.config)
    try:
        check_parity(encoder, file)
    except ExportError as error:
        log.warning("the float16 graph is made without fused operators, with which %s", error)
        shutil.copyfile(graph, file)
    fp16.halve(file)
    for case, torchs, got in _both(encoder, file):
        worst = float((torchs.vectors * got.vectors).sum(axis=1).min())
        if not worst >= bundle.GOLDEN_COSINE:  # also when it is NaN
            raise ExportError(
                f"{case}: the float16 graph's cosine to torch's vectors is {worst:.5f}, "
                f"below {bundle.GOLDEN_COSINE}: leave --fp16 out"
            )


def check_prompts(encoder: Encoder) -> None:
    """Each leaves room for a text.

    Raises:
        bundle.BundleError: one alone is as long as what the encoder reads.
    """
    for name, prompt in encoder.prompts.items():
        (tokens,) = encoder.tokenizer.encode([prompt])
        if tokens.length >= encoder.max_length:
            raise BundleError(f"prompt {name}: its {tokens.length} tokens fill the {encoder.max_length} of a text")


def check_vectors(encoder: Encoder) -> None:
    """The encoder tells texts apart by directions.

    Raises:
        SourceError: a vector has no direction, or all have the same.
    """
    vectors = encoder.encode(GOLDEN_SENTENCES)
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(vectors, axis=1)
    for text, length in zip(GOLDEN_SENTENCES, lengths, strict=True):
        if not 0 < length < np.inf:
            raise SourceError(f"the encoder gives {text!r} a vector of length {length}, which has no direction")
    if np.ptp(vectors / lengths[:, None], axis=0).max() <= SAME:
        raise SourceError("the encoder gives all texts the same vector")


def check_again(encoder: Encoder, before: Bundle) -> None:
    """The encoder is still the one of which `before` was made, though another transformers may run it.

    Raises:
        ExportError: a golden vector of `before` does not come out again.
    """
    worst = golden_cosine_of(lambda texts: unit_vectors(encoder, texts), before)
    if not worst >= AGAIN:
        raise ExportError(
            f"{before.folder}: cosine {worst:.6f} to a golden vector of it, below {AGAIN}: "
            "this environment's transformers computes another encoder from its files"
        )


def check_parity(encoder: Encoder, file: Path) -> float:
    """The largest difference of a coordinate, ONNX Runtime against torch, over every shape a server sends.

    Raises:
        ExportError: it is above `PARITY`, or the norms differ by more than that, relatively.
    """
    worst = 0.0
    for case, torchs, got in _both(encoder, file):
        with np.errstate(invalid="ignore"):  # of what is not finite, which is told below
            vectors, norms = _largest(got.vectors - torchs.vectors), _largest(got.norms / torchs.norms - 1)
        difference = float(np.max([vectors, norms]))  # unlike `max` it keeps a NaN
        if not difference <= PARITY:  # also when it is NaN
            raise ExportError(f"{case}: ONNX Runtime differs from torch by {difference:.2e}, more than {PARITY:.0e}")
        worst = max(worst, difference)
    return worst


class _Case(NamedTuple):
    name: str
    torchs: Embedded
    got: Embedded


def _both(encoder: Encoder, file: Path) -> Iterator[_Case]:
    """What torch and what ONNX Runtime on the graph in `file` make of every shape that a server sends."""
    session, graph = Session(file, [CPU], cpus.available()), UnitVector(encoder)
    for name, batch in _parity_batches(encoder).items():
        with torch.inference_mode(), dropout_off(graph):
            torchs = Embedded(*(out.float().cpu().numpy() for out in graph(*encoder.tensors(batch))))
        yield _Case(name, torchs, session.run(*encoder.tokenizer.pad(batch)))


def _parity_batches(encoder: Encoder) -> dict[str, list[Tokens]]:
    long = " ".join(GOLDEN_SENTENCES * (encoder.max_length // 40 + 1))
    groups: dict[str, Sequence[str]] = {
        "a short text": ["A short text."],
        "a text of the maximal length": [long],
        "a single token": ["a"],
        "an empty text": [""],
        "a padded batch": [*GOLDEN_SENTENCES, "a", "", long],
    }
    return {case: encoder.tokenizer.encode(texts) for case, texts in groups.items()}


def unit_vectors(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Embed texts by torch: (N, D), each of length 1."""
    vectors = encoder.encode(texts)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(SHORTEST)
    return vectors


def _largest(difference: NDArray[np.float32]) -> float:
    return float(np.abs(difference).max())
