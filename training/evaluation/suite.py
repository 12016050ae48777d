"""Everything that is measured of one encoder, as one JSON object (docs/evaluation.md describes it)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from models.bundle import FP32
from training.evaluation import beir, geometry, retrieval, sts, transfer
from training.evaluation.beir import Collection
from training.evaluation.labelled import TRANSFER_TASKS, Labelled
from training.evaluation.pairs import STS_TASKS, STSB_DEV, DataError, Subsets, data_root, texts
from training.evaluation.subjects import OtherGraph, Subject
from training.evaluation.vectors import Encode, remembered
from training.machine.environment import environment

FORMAT = 1
TASKS = ("sts", "transfer", "retrieval", "geometry")
"""Families, and geometry; a single task of sts or transfer has its own name."""
ALONE = 50
"""Texts encoded one by one, for the latency."""
SENTENCES_OF = "STS-B dev, first of each pair"
"""Never both of a pair: a paraphrase in every sentence's batch would be a neighbour that no batch of a corpus has."""


@dataclass(frozen=True)
class Material:
    """The data of the tasks that were asked for; what was not asked for is empty."""

    sts: Mapping[str, Subsets] = field(default_factory=dict)
    transfer: Mapping[str, Labelled] = field(default_factory=dict)
    retrieval: Mapping[str, Collection] = field(default_factory=dict)
    geometry: Subsets = field(default_factory=dict)
    sentences: Sequence[str] = ()
    """Of a corpus, whose nearest neighbours in a batch are measured."""


def material(data: Path, tasks: Sequence[str]) -> Material:
    """From a folder with SentEval's and BEIR's: `senteval/downstream` or that itself, and `retrieval/<collection>`
    or one collection itself.

    Raises:
        DataError: a task's data is missing or broken.
    """
    collections = beir.collections(data)
    if "retrieval" in tasks and not collections:
        raise DataError(f"{data}: no {beir.FOLDER}/<name>/{beir.CORPUS} and no {beir.CORPUS}: no collection of BEIR's")
    if not data_root(data).is_dir():
        raise DataError(f"{data}: no such folder")
    return Material(
        sts={name: files.load(data) for name, files in STS_TASKS.items() if {"sts", name} & {*tasks}},
        transfer={name: files.load(data) for name, files in TRANSFER_TASKS.items() if {"transfer", name} & {*tasks}},
        retrieval={name: beir.load(place) for name, place in collections.items()} if "retrieval" in tasks else {},
        geometry=STSB_DEV.load(data) if "geometry" in tasks else {},
    )


def judge(subject: Subject, given: Material, *, command: str) -> dict[str, Any]:
    """Every task that has its data.

    Raises:
        EvaluationError: a vector is not finite, or the encoder gives all texts the same one.
        SubjectError: another graph that is to be compared does not run; it is tried before anything is judged.
    """
    all_sts, all_transfer = len(given.sts) == len(STS_TASKS), len(given.transfer) == len(TRANSFER_TASKS)
    if given.sts:
        for other in subject.others.values():
            other.encode(["a text"])
    watched = Watched(subject.encode)
    encode = remembered(watched)
    found: dict[str, Any] = {
        "format": FORMAT,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "subject": dict(subject.facts),
        "environment": environment(),
    }
    if given.sts:
        scores = sts.evaluate(encode, given.sts)
        tasks = {name: score.to_json() for name, score in scores.items()}
        found["sts"] = {"tasks": tasks, **({"mean": sts.mean_of_tasks(scores)} if all_sts else {})}
    if given.geometry:
        pairs = [pair for subset in given.geometry.values() for pair in subset]
        shape = geometry.evaluate(encode, pairs, sentences=[pair.a for pair in pairs])
        found["geometry"] = {**shape.to_json(), "sentences_of": SENTENCES_OF}
    if given.transfer:
        accuracies = transfer.evaluate(encode, given.transfer)
        mean = statistics.fmean(score.accuracy for score in accuracies.values())
        tasks = {name: score.to_json() for name, score in accuracies.items()}
        found["transfer"] = {"tasks": tasks, **({"mean": mean} if all_transfer else {})}
    if given.retrieval:
        found["retrieval"] = {name: _searched(subject, encode, each) for name, each in given.retrieval.items()}
    if watched.texts:  # a server's own search encodes out of sight
        found["speed"] = {**watched.speed(), "latency_ms": _latency(subject.encode, given)}
    if given.sts and subject.others:
        found["precisions"] = _precisions(subject, given.sts)
    if subject.run and subject.run.get("curve"):
        found |= {"curve": subject.run["curve"], "best_step": subject.run["best_step"]}
    return found


class Watched:
    """An encoder with a clock beside it."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self.texts = 0
        self._seconds = 0.0

    def __call__(self, texts: Sequence[str]) -> Any:
        """As the encoder."""
        started = time.perf_counter()
        vectors = self._encode(texts)
        self._seconds += time.perf_counter() - started
        self.texts += len(texts)
        return vectors

    def speed(self) -> dict[str, float]:
        """Of all that was encoded so far, tokenising included; something must have been."""
        return {
            "texts": self.texts,
            "seconds": round(self._seconds, 2),
            "texts_per_second": round(self.texts / self._seconds, 1),
        }


def _searched(subject: Subject, encode: Encode, collection: Collection) -> dict[str, Any]:
    if subject.rankings is None:
        score = retrieval.evaluate(encode, collection, prompts=subject.prompts)
        return {**score.to_json(), "through": "exact search"}
    score = retrieval.score(subject.rankings(collection), collection)
    return {**score.to_json(), "through": "the server's index"}


def _latency(encode: Encode, given: Material) -> dict[str, float]:
    """Milliseconds of single texts, none of them encoded just before."""
    seconds = []
    for text in _some_texts(given)[:ALONE]:
        started = time.perf_counter()
        encode([text])
        seconds.append(time.perf_counter() - started)
    p50, p95 = np.percentile(np.array(seconds) * 1000, (50, 95)).round(2).tolist()
    return {"p50": p50, "p95": p95}


def _some_texts(given: Material) -> list[str]:
    """Of whatever task there is."""
    scored = texts({**given.sts, "geometry": given.geometry})
    labelled = [text for each in given.transfer.values() for example in each.train for text in example.texts]
    asked = [text for each in given.retrieval.values() for text in each.queries.values()]
    return scored or list(dict.fromkeys(labelled or asked))


def _precisions(subject: Subject, tasks: Mapping[str, Subsets]) -> dict[str, dict[str, Any]]:
    """Each graph of the bundle: its STS mean, the least cosine to fp32's vectors, its speed and size.

    Where there is no fp32, the cosine is to the judged one's.
    """
    judged = subject.called
    graphs = {judged: OtherGraph(subject.encode, subject.facts["bytes"]), **subject.others}
    reference = FP32 if FP32 in graphs else judged
    watched = {precision: Watched(graph.encode) for precision, graph in graphs.items()}
    encoders = {precision: remembered(each) for precision, each in watched.items()}
    sentences = texts(tasks)
    exact = encoders[reference](sentences)
    return {
        precision: {
            "sts_mean": sts.mean_of_tasks(sts.evaluate(encode, tasks)),
            "least_cosine": float(np.einsum("nd,nd->n", exact, encode(sentences)).min()),
            "cosine_to": reference,
            "texts_per_second": watched[precision].speed()["texts_per_second"],
            "bytes": graphs[precision].bytes,
        }
        for precision, encode in encoders.items()
    }
