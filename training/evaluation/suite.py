"""The complete evaluation of one encoder, as one JSON object and as tables (see docs/evaluation.md)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from models.bundle.bundle import FP32
from training.evaluation import beir, geometry, retrieval, sts, transfer
from training.evaluation.beir import Collection
from training.evaluation.labelled import TRANSFER_TASKS, Labelled
from training.evaluation.pairs import STS_TASKS, STSB_DEV, DataError, Subsets, data_root, texts
from training.evaluation.report.evaluated import FORMAT
from training.evaluation.subjects import OtherGraph, Subject
from training.evaluation.vectors import Encode, cached
from training.machine.hardware import environment

TASKS = ("sts", "transfer", "retrieval", "geometry")
"""Names of the task families, and `geometry`. A single STS or transfer task can be chosen by its own name."""
LATENCY_TEXTS = 50
"""Number of texts that are encoded one by one to measure latency."""
SENTENCES_OF = "STS-B dev, first of each pair"
"""Description of the sentences whose nearest neighbours are measured.

Only the first sentence of each pair is used. Otherwise a batch could contain paraphrases, unlike a batch of a corpus.
"""


@dataclass(frozen=True)
class EvaluationData:
    """Data of the requested tasks. Fields of other tasks are empty."""

    sts: Mapping[str, Subsets] = field(default_factory=dict)
    transfer: Mapping[str, Labelled] = field(default_factory=dict)
    retrieval: Mapping[str, Collection] = field(default_factory=dict)
    geometry: Subsets = field(default_factory=dict)
    sentences: Sequence[str] = ()
    """Sentences of a corpus. The nearest in-batch neighbours of these sentences are measured."""


def load_data(data: Path, tasks: Sequence[str]) -> EvaluationData:
    """Load the tasks' data from a folder in SentEval's and BEIR's layouts.

    For SentEval, `data` contains `senteval/downstream`, or is the `downstream` folder itself. For BEIR, `data` contains
    `retrieval/<collection>`, or is itself a collection.

    Raises:
        DataError: a task's data is missing or broken.
    """
    collections = beir.collections(data)
    if "retrieval" in tasks and not collections:
        raise DataError(f"{data}: no {beir.FOLDER}/<name>/{beir.CORPUS} and no {beir.CORPUS}: no collection of BEIR's")
    if not data_root(data).is_dir():
        raise DataError(f"{data}: no such folder")
    return EvaluationData(
        sts={name: files.load(data) for name, files in STS_TASKS.items() if {"sts", name} & {*tasks}},
        transfer={name: files.load(data) for name, files in TRANSFER_TASKS.items() if {"transfer", name} & {*tasks}},
        retrieval={name: beir.load(place) for name, place in collections.items()} if "retrieval" in tasks else {},
        geometry=STSB_DEV.load(data) if "geometry" in tasks else {},
    )


def evaluate(subject: Subject, given: EvaluationData, *, command: str) -> dict[str, Any]:
    """Evaluate every task that has data. Return all scores, the speed and the facts about the encoder, as JSON.

    Raises:
        EvaluationError: a vector is not finite, or the encoder gives all texts the same vector.
        SubjectError: one of the graphs in `subject.others` does not run. If there is STS data, these graphs are tried
            before the evaluation. Without STS data, they are not used.
    """
    all_sts, all_transfer = len(given.sts) == len(STS_TASKS), len(given.transfer) == len(TRANSFER_TASKS)
    if given.sts:
        for other in subject.others.values():
            other.encode(["a text"])
    watched = TimedEncoder(subject.encode)
    encode = cached(watched)
    found: dict[str, Any] = {
        "format": FORMAT,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "subject": dict(subject.facts),
        "environment": environment(),
    }
    if given.sts:
        scores = sts.evaluate(encode, given.sts)
        tasks = {name: asdict(score) for name, score in scores.items()}
        found["sts"] = {"tasks": tasks, **({"mean": sts.mean_of_tasks(scores)} if all_sts else {})}
    if given.geometry:
        pairs = [pair for subset in given.geometry.values() for pair in subset]
        shape = geometry.evaluate(encode, pairs, sentences=[pair.a for pair in pairs])
        found["geometry"] = {**asdict(shape), "sentences_of": SENTENCES_OF}
    if given.transfer:
        accuracies = transfer.evaluate(encode, given.transfer)
        mean = statistics.fmean(score.accuracy for score in accuracies.values())
        tasks = {name: asdict(score) for name, score in accuracies.items()}
        found["transfer"] = {"tasks": tasks, **({"mean": mean} if all_transfer else {})}
    if given.retrieval:
        found["retrieval"] = {name: _retrieval_score(subject, encode, each) for name, each in given.retrieval.items()}
    if watched.texts:  # A server's own search encodes on the server and can't be timed here.
        found["speed"] = {**watched.speed(), "latency_ms": _latency(subject.encode, given)}
    if given.sts and subject.others:
        found["precisions"] = _precisions(subject, given.sts)
    if subject.run and subject.run.get("curve"):
        found |= {"curve": subject.run["curve"], "best_step": subject.run["best_step"]}
    return found


class TimedEncoder:
    """An encoder whose calls are timed."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self.texts = 0
        self._seconds = 0.0

    def __call__(self, texts: Sequence[str]) -> Any:
        started = time.perf_counter()
        vectors = self._encode(texts)
        self._seconds += time.perf_counter() - started
        self.texts += len(texts)
        return vectors

    def speed(self) -> dict[str, float]:
        """Return the speed over all texts so far, including tokenisation. At least one text must have been encoded."""
        return {
            "texts": self.texts,
            "seconds": round(self._seconds, 2),
            "texts_per_second": round(self.texts / self._seconds, 1),
        }


def _retrieval_score(subject: Subject, encode: Encode, collection: Collection) -> dict[str, Any]:
    if subject.rankings is None:
        score = retrieval.evaluate(encode, collection, prompts=subject.prompts)
        return {**score.to_json(), "through": "exact search"}
    score = retrieval.score(subject.rankings(collection), collection)
    return {**score.to_json(), "through": "the server's index"}


def _latency(encode: Encode, given: EvaluationData) -> dict[str, float]:
    """Measure the median (`p50`) and the 95th percentile (`p95`) of the milliseconds for a single text."""
    seconds = []
    for text in _some_texts(given)[:LATENCY_TEXTS]:
        started = time.perf_counter()
        encode([text])
        seconds.append(time.perf_counter() - started)
    p50, p95 = np.percentile(np.array(seconds) * 1000, (50, 95)).round(2).tolist()
    return {"p50": p50, "p95": p95}


def _some_texts(given: EvaluationData) -> list[str]:
    """Return the texts of STS and geometry. If there are none, return those of transfer, or else retrieval queries."""
    scored = texts({**given.sts, "geometry": given.geometry})
    labelled = [text for each in given.transfer.values() for example in each.train for text in example.texts]
    asked = [text for each in given.retrieval.values() for text in each.queries.values()]
    return scored or list(dict.fromkeys(labelled or asked))


def _precisions(subject: Subject, tasks: Mapping[str, Subsets]) -> dict[str, dict[str, Any]]:
    """Compare the bundle's graphs by STS mean, minimum cosine to the reference's vectors, speed and size.

    The reference is the fp32 graph, or the evaluated graph if there is no fp32 graph.
    """
    judged = subject.variant
    graphs = {judged: OtherGraph(subject.encode, subject.facts["bytes"]), **subject.others}
    reference = FP32 if FP32 in graphs else judged
    watched = {precision: TimedEncoder(graph.encode) for precision, graph in graphs.items()}
    encoders = {precision: cached(each) for precision, each in watched.items()}
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


# Tables of an evaluation for a terminal.


def tables(evaluation: Mapping[str, Any]) -> str:
    """Format a line about the encoder and a table for each evaluated task, separated by blank lines."""
    subject = evaluation["subject"]
    known = ("kind", "pooling", "transform", "dim", "engine", "precision", "device")
    facts = ", ".join(f"{name} {subject[name]}" for name in known if subject.get(name) is not None)
    made = [f"{subject.get('name')}: {facts}"]
    for name, write in WRITERS.items():
        if name in evaluation:
            made.append("\n".join(write(evaluation[name])))
    return "\n\n".join(made)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns to their widest cell, the first column to the left and all further columns to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _sts(scores: Mapping[str, Any]) -> Iterator[str]:
    tasks = scores["tasks"]
    whole = "mean" in scores
    rows = [["", *tasks, *(["mean"] if whole else [])]]
    for kind in ("spearman", "pearson"):
        for over in ("all", "mean", "wmean"):
            values = [tasks[task][kind][over] for task in tasks]
            if whole:
                values.append(scores["mean"] if (kind, over) == ("spearman", "all") else sum(values) / len(values))
            rows.append([f"{kind.capitalize()}, {OVER[over]}", *(f"{value:.2f}" for value in values)])
    yield from aligned(rows)


def _transfer(scores: Mapping[str, Any]) -> Iterator[str]:
    tasks = scores["tasks"]
    rows = [
        ["Transfer", *tasks],
        ["accuracy", *(f"{task['accuracy']:.2f}" for task in tasks.values())],
        ["on dev", *(f"{task['dev_accuracy']:.2f}" for task in tasks.values())],
        ["F1", *(f"{task['f1']:.2f}" if task["f1"] is not None else "" for task in tasks.values())],
    ]
    if "mean" in scores:
        rows = [[*row, cell] for row, cell in zip(rows, ["mean", f"{scores['mean']:.2f}", "", ""], strict=True)]
    yield from aligned(rows)


def _retrieval(scores: Mapping[str, Any]) -> Iterator[str]:
    rows = [["Retrieval", "nDCG@10", "MRR@10", "Recall@100", "queries", "documents", "through"]]
    for name, score in scores.items():
        measures = [f"{score[measure]:.2f}" for measure in ("ndcg10", "mrr10", "recall100")]
        rows.append([name, *measures, str(score["queries"]), str(score["documents"]), score["through"]])
    yield from aligned(rows)
    for name, score in scores.items():
        if missing := score.get("missing"):
            yield f"{name}: {missing} judgements name relevant documents that the collection lacks"


def _geometry(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        ["Geometry", ""],
        ["alignment", f"{found['alignment']:.4f}"],
        ["uniformity", f"{found['uniformity']:.4f}"],
        ["mean cosine", f"{found['random_cosine_mean']:.4f}"],
        ["effective rank", f"{found['spectrum']['effective_rank']:.1f} of {found['dim']}"],
        ["effective rank, centred", f"{found['spectrum_centred']['effective_rank']:.1f}"],
        ["rank of the correlations", str(found["correlation_rank"])],
    ]
    yield from aligned(rows)


def _speed(found: Mapping[str, Any]) -> Iterator[str]:
    latency = found["latency_ms"]
    yield (
        f"{found['texts']} texts in {found['seconds']} s, {found['texts_per_second']:.0f} a second; "
        f"a single text {latency['p50']:.1f} ms (median), {latency['p95']:.1f} ms (95th percentile)"
    )


def _precision_rows(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [["Precision", "STS mean", "least cosine", "to", "texts/s", "MB"]]
    for name, one in found.items():
        cosine = f"{one['least_cosine']:.6f}"
        speed, size = f"{one['texts_per_second']:.0f}", f"{one['bytes'] / 1e6:.1f}"
        rows.append([name, f"{one['sts_mean']:.2f}", cosine, one["cosine_to"], speed, size])
    yield from aligned(rows)


OVER = {"all": "all pairs", "mean": "mean of subsets", "wmean": "by their size"}
WRITERS = {
    "sts": _sts,
    "transfer": _transfer,
    "retrieval": _retrieval,
    "geometry": _geometry,
    "precisions": _precision_rows,
    "speed": _speed,
}
