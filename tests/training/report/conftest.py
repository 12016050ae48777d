"""Fixtures: a complete evaluation, and a reader of HTML pages."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

Evaluation = dict[str, Any]
Evaluate = Callable[..., Evaluation]

SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
    "STSB": ("test",),
    "SICKR": ("test",),
}
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")


VOID = {"meta"}


class Page(HTMLParser):
    """Elements with their attributes, and the text of a page. Mismatched tags are an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    def ids(self, tag: str | None = None) -> list[str]:
        return [
            attributes["id"] or "" for name, attributes in self.elements if "id" in attributes and tag in (None, name)
        ]

    @property
    def figures(self) -> list[str]:
        return [name.removesuffix("-title") for name in self.ids("title")]

    @property
    def text(self) -> str:
        return "".join(self.words)


@pytest.fixture
def evaluate() -> Evaluate:
    """Return a function that makes an evaluation, which is different for each seed."""
    return evaluation


def evaluation(name: str = "minilm", *, seed: int = 0, width: int = 384) -> Evaluation:
    rng = np.random.default_rng(seed)
    tasks = {task: _task(rng, subsets) for task, subsets in SUBSETS.items()}
    steps = range(0, 2001, 125)
    return {
        "format": 1,
        "command": f"isosphere evaluate artifacts/{name} --tasks sts transfer --html report.html",
        "created": "2026-11-21T12:00:00+00:00",
        "subject": {
            "source": f"artifacts/{name}", "kind": "bundle", "name": name, "objective": None, "backbone": "minilm",
            "fingerprint": "ab12cd34" * 8, "pooling": "mean", "transform": None, "dim": width, "max_length": 256,
            "engine": "onnxruntime 1.31.1", "precision": "fp32", "device": "cpu", "bytes": 90868376,
        },
        "environment": {"python": "3.11.7", "torch": "2.9.1", "transformers": "5.23.0", "numpy": "2.3.4"},
        "sts": {"tasks": tasks, "mean": float(np.mean([task["spearman"]["all"] for task in tasks.values()]))},
        "transfer": {"tasks": {task: _transfer(rng, task) for task in TRANSFER}, "mean": 81.2 + seed},
        "retrieval": {
            "scifact": {"ndcg10": 64.5, "mrr10": 60.1, "recall100": 92.0, "queries": 300, "documents": 5183,
                        "through": "exact search"},
        },
        "geometry": _geometry(rng, width),
        "curve": [
            {"step": step, "stsb_dev_spearman": 82 - 6 * np.exp(-step / 300) + rng.normal() / 3,
             "uniformity": -2.1 - step / 2500, "alignment": 0.2 + step / 20000,
             "effective_rank": 40 + step / 100}
            for step in steps
        ],
        "best_step": 1250 - 125 * seed,
        "speed": {"texts": 28000, "seconds": 41.2, "texts_per_second": 680.0, "latency_ms": {"p50": 3.1, "p95": 4.0}},
        "precisions": {
            "fp32": {"sts_mean": 78.87, "least_cosine": 1.0, "cosine_to": "fp32", "texts_per_second": 680,
                     "bytes": 90868376},
            "bf16": {"sts_mean": 78.85, "least_cosine": 0.9991, "cosine_to": "fp32", "texts_per_second": 1190,
                     "bytes": 45434188},
            "int8": {"sts_mean": 78.21, "least_cosine": 0.9712, "cosine_to": "fp32", "texts_per_second": 1820,
                     "bytes": 22717094},
        },
    }  # fmt: skip


def _task(rng: np.random.Generator, subsets: tuple[str, ...]) -> Evaluation:
    def score() -> float:
        return float(rng.uniform(60, 88))

    return {
        "spearman": {"all": score(), "mean": score(), "wmean": score()},
        "pearson": {"all": score(), "mean": score(), "wmean": score()},
        "pairs": 750 * len(subsets),
        "subsets": {subset: {"spearman": score(), "pearson": score(), "pairs": 750} for subset in subsets},
    }


def _transfer(rng: np.random.Generator, task: str) -> Evaluation:
    return {
        "accuracy": float(rng.uniform(70, 95)),
        "f1": 81.4 if task == "MRPC" else None,
        "dev_accuracy": float(rng.uniform(70, 95)),
        "folds": [{"c": c, "test": 377} for c in (1.0, 0.5, 2.0, 1.0, 4.0, 1.0, 1.0, 0.25, 1.0, 8.0)],
    }


def _geometry(rng: np.random.Generator, width: int) -> Evaluation:
    spectrum = np.sort(np.exp(-np.linspace(0, 3, width)) * rng.uniform(0.9, 1.1, width))[::-1]
    edges = np.linspace(-1, 1, 51)
    share = np.exp(-((edges[:-1] - 0.05 + 0.02) ** 2) / 0.02)
    return {
        "sentences": 1406, "sentences_of": "STS-B dev, first of each pair",
        "alignment": 0.21 + rng.uniform(-0.02, 0.02), "alignment_at_least_4": 0.24,
        "uniformity": -3.1 + rng.uniform(-0.3, 0.3), "random_cosine_mean": 0.02, "random_cosine_sd": 0.1,
        "spectrum": {"effective_rank": 210.3, "values": (spectrum / spectrum.sum()).tolist()},
        "spectrum_centred": {"effective_rank": 215.1, "values": (spectrum / spectrum.sum()).tolist()},
        "cosine_histogram": {"edges": edges.tolist(), "share": (share / share.sum()).tolist()},
        "top4_cosine": {str(2**k): 0.2 + 0.05 * k + float(rng.uniform(0, 0.02)) for k in range(5, 10)},
        "correlation_rank": width, "correlation_rank_of_64": 63,
    }  # fmt: skip
