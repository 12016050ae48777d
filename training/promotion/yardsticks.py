"""By what two encoders are compared: people's scores where there are any, else a score without labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from math import log2
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.errors import Refused
from models.prompts import NO_PROMPTS
from training.corpus.corpus import Corpus, holds_passages, open_corpus
from training.corpus.files import CorpusError
from training.evaluation import beir, bootstrap, known_item, retrieval, self_retrieval, sts
from training.evaluation.beir import Collection
from training.evaluation.bootstrap import Comparison
from training.evaluation.pairs import STS_TASKS, STSB_DEV, DataError, Pair, Subsets
from training.evaluation.retrieval import MEASURES, NDCG10
from training.evaluation.vectors import Encode

MEAN_STS = "mean STS"
LEAST_QUERIES = 20
"""Known items that a comparison needs."""
KNOWN_ITEMS = f"known items {NDCG10}"
RESAMPLES = 1000
LEVEL = 0.95
STSB_DRIFT, DRIFT = 0.1, 0.2
"""Points by which what runs a bundle may differ from its float32 graph: on STS-B dev, and by any other score."""
FLIP, FLIPS = 25.0, 2
"""Of n sentences, one half that is found second instead of first moves self-retrieval by FLIP / n points; so many of
them are no drift, however few the sentences are.
"""
SECOND = 100 * (1 - 1 / log2(3))
"""Points of nDCG that a query loses whose one document is found second instead of first."""


@dataclass(frozen=True)
class Judged:
    """What a yardstick says of an encoder."""

    score: float
    """In points: of 100, more is better."""
    values: NDArray[np.float64]
    """Of each pair or query (n,): what `compare` resamples."""


class Yardstick(Protocol):
    """Scores encoders, and says how far two of them are apart."""

    metric: str
    named: str | None
    """What a manifest calls the score; None for one that is of the corpus that was at hand, and no bundle's own."""
    sample: str
    """The hash of what is scored: scores of one metric on one sample can be compared later."""
    limits: Mapping[str, float]
    """Of each metric that `scores` gives: by how many points what runs a bundle may differ from its float32 graph."""

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Judged:
        """The score, and what it comes from; where queries are asked, by the encoder's `prompts` for such.

        Raises:
            EvaluationError: the vectors allow none.
        """

    def compare(self, a: Judged, b: Judged) -> Comparison:
        """`a` minus `b` in points, with the bootstrap interval over the pairs or queries."""

    def scores(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Mapping[str, float]:
        """Those, in points, by which what runs a bundle is held against its float32 graph.

        Raises:
            EvaluationError: the vectors allow none.
        """


class Labelled:
    """Spearman x 100 on STS-B dev; for engines also the mean of the seven STS tasks where all are there."""

    metric = "STS-B dev"
    named: str | None = sts.STSB_DEV_METRIC

    def __init__(self, data: Path) -> None:
        """Reads what is there.

        Raises:
            DataError: STS-B dev, or a task of which there is a file, is missing or broken.
        """
        self._dev: Subsets = STSB_DEV.load(data)
        self._pairs: list[Pair] = [pair for pairs in self._dev.values() for pair in pairs]
        self.sample = _hash([astuple(pair) for pair in self._pairs])
        whole = all(files.present(data) for files in STS_TASKS.values())
        self._tasks = {name: files.load(data) for name, files in STS_TASKS.items()} if whole else {}
        self.limits: Mapping[str, float] = {self.metric: STSB_DRIFT, **({MEAN_STS: DRIFT} if whole else {})}

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Judged:  # noqa: ARG002 - pairs have no role
        """See `Yardstick`."""
        tasks = {self.metric: self._dev}
        cosines = sts.cosines(encode, tasks)
        score = sts.score(cosines, tasks)[self.metric].spearman.all
        return Judged(score, np.concatenate(list(cosines[self.metric].values())))

    def compare(self, a: Judged, b: Judged) -> Comparison:
        """See `Yardstick`."""
        golds = np.array([pair.gold for pair in self._pairs])
        return bootstrap.compare([a.values], [b.values], golds, resamples=RESAMPLES, level=LEVEL)

    def scores(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> dict[str, float]:  # noqa: ARG002 - pairs have no role
        """See `Yardstick`."""
        found = sts.evaluate(encode, {**self._tasks, self.metric: self._dev})
        scores = {self.metric: found.pop(self.metric).spearman.all}
        return {**scores, MEAN_STS: sts.mean_of_tasks(found)} if found else scores


class Unlabelled:
    """MRR@10 x 100 of finding a held-out sentence's other half."""

    metric = "self-retrieval"
    named: str | None = None

    def __init__(self, corpus: Corpus) -> None:
        """Halves the held-out sentences.

        Raises:
            CorpusError: no two of them have enough words.
        """
        self._halves = [pair for pair in map(self_retrieval.halves, corpus.census.held_out) if pair]
        if len(self._halves) < 2:
            raise CorpusError(
                f"{corpus.name}: a score without --data needs two held-out sentences of "
                f"{self_retrieval.LEAST_WORDS} words or more, and there are {len(self._halves)}: one in 20 is held out"
            )
        self.sample = _hash(self._halves)
        self.limits: Mapping[str, float] = {self.metric: max(DRIFT, FLIPS * FLIP / len(self._halves))}

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Judged:  # noqa: ARG002 - pairs have no role
        """See `Yardstick`."""
        values = 100 * self_retrieval.reciprocal_ranks(encode, self._halves)
        return Judged(float(values.mean()), values)

    def compare(self, a: Judged, b: Judged) -> Comparison:
        """See `Yardstick`."""
        return bootstrap.compare_means(a.values, b.values, resamples=RESAMPLES, level=LEVEL)

    def scores(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> dict[str, float]:  # noqa: ARG002 - pairs have no role
        """See `Yardstick`."""
        return {self.metric: self.judge(encode).score}


class Searched:
    """nDCG@10 x 100 on a collection: which documents of a domain answer its queries."""

    def __init__(self, collection: Collection, metric: str, *, named: str | None) -> None:
        self._collection = collection
        self.metric = metric
        self.named = named
        self.sample = _hash([[*part.items()] for part in astuple(self._collection)])
        self.limits: Mapping[str, float] = {self.metric: max(DRIFT, FLIPS * SECOND / len(self._collection.queries))}

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Judged:
        """See `Yardstick`."""
        found = retrieval.by_query(retrieval.rankings(encode, self._collection, prompts=prompts), self._collection)
        values = 100 * found[:, MEASURES.index(NDCG10)]
        return Judged(float(values.mean()), values)

    def compare(self, a: Judged, b: Judged) -> Comparison:
        """See `Yardstick`."""
        return bootstrap.compare_means(a.values, b.values, resamples=RESAMPLES, level=LEVEL)

    def scores(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> dict[str, float]:
        """See `Yardstick`."""
        return {self.metric: self.judge(encode, prompts).score}


def _judged(data: Path, name: str) -> Searched:
    """Make the yardstick of a collection whose answers people judged.

    Raises:
        DataError: it is missing or broken.
    """
    collection, split = beir.part(name)
    metric = f"{collection if split == beir.TEST else name} {NDCG10}"  # its test has two names
    return Searched(beir.find(data, name), metric, named=metric)


def _unlabelled(files: Sequence[str], column: str | None) -> Yardstick:
    """Make the yardstick of a corpus: known items of passages, self-retrieval of sentences.

    Passages of which too few were held out are compared by their halves, as sentences are.

    Raises:
        CorpusError: a file can't be read, or holds too little.
    """
    if holds_passages(files, column=column):
        collection = known_item.judging(open_corpus(files, column=column, passages=True))
        if len(collection.queries) >= LEAST_QUERIES:
            return Searched(collection, KNOWN_ITEMS, named=None)
    return Unlabelled(open_corpus(files, column=column))


def pick(
    data: Path | None, corpus: Sequence[str], collection: str | None = None, *, column: str | None = None
) -> Yardstick:
    """The collection where one is named, else STS-B dev where there is data, else what the corpus can be asked.

    The corpus is by default CPython's documentation.

    Raises:
        DataError, CorpusError: the one or the other is missing or broken, or a collection is named without data.
        Refused: both are named, of which one would be ignored.
    """
    if data is not None and corpus:
        raise Refused(f"--corpus {corpus[0]}: --data says by what is compared; leave one of them out")
    if collection is not None:
        if data is None:
            raise DataError(f"--retrieval {collection}: name the folder that has retrieval/{collection} by --data")
        return _judged(data, collection)
    return Labelled(data) if data is not None else _unlabelled(corpus, column)


def _hash(sample: Sequence[Sequence[object]]) -> str:
    return hashlib.sha256(json.dumps(sample).encode()).hexdigest()
