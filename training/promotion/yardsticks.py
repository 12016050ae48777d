"""Yardsticks for comparing two encoders: by human judgements if available, otherwise by a score without labels."""

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

from models.bundle.prompts import NO_PROMPTS
from models.errors import Refused
from training.data.corpus import Corpus, has_passages, open_corpus
from training.data.files import CorpusError
from training.evaluation import beir, bootstrap, known_item, retrieval, sts, vectors
from training.evaluation.beir import Collection
from training.evaluation.bootstrap import Comparison
from training.evaluation.pairs import STS_TASKS, STSB_DEV, DataError, Pair, Subsets
from training.evaluation.retrieval import MEASURES, NDCG10
from training.evaluation.vectors import Encode

MEAN_STS = "mean STS"
LEAST_QUERIES = 20
"""Minimum number of known-item queries in a comparison."""
KNOWN_ITEMS = f"known items {NDCG10}"
STSB_DRIFT, DRIFT = 0.1, 0.2
"""Maximum differences in points from the float32 graph: for STS-B dev, and for any other score."""
FLIP, FLIPS = 25.0, 2
"""Tolerance of comparisons by self-retrieval.

If one half of a sentence moves from rank 1 to rank 2, the score over n sentences falls by FLIP / n points. Up to FLIPS
such changes are tolerated.
"""
SECOND = 100 * (1 - 1 / log2(3))
"""Points of nDCG that a query with one relevant document loses when it moves from rank 1 to rank 2."""


@dataclass(frozen=True)
class Scored:
    """The score of an encoder, as measured by a yardstick."""

    score: float
    """Score in points, from 0 to 100. A higher score is better."""
    values: NDArray[np.float64]
    """Values of the pairs or queries (n,), which `compare` resamples."""


class Yardstick(Protocol):
    """Protocol of an object that scores encoders and compares two of them."""

    metric: str
    named: str | None = None
    """Name of the score in a manifest, or None if the score depends on the user's corpus."""
    sample: str
    """Hash of the test data. Two scores of the same metric are comparable if these hashes are equal."""
    limits: Mapping[str, float]
    """Maximum difference in points between a runtime and the float32 graph, by the metrics of `scores`."""

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Scored:
        """Return the encoder's score.

        `prompts` are the encoder's prompts, which only retrieval uses.

        Raises:
            EvaluationError: the vectors have no score, for example because a number is not finite.
        """

    def compare(self, a: Scored, b: Scored) -> Comparison:
        """Return the difference `a` - `b` in points, with a confidence interval.

        The interval is from a bootstrap that resamples the pairs or queries of the test data.
        """
        return bootstrap.compare_means(a.values, b.values)

    def scores(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Mapping[str, float]:
        """Return scores in points, by metric. They are used to compare a runtime with the float32 graph.

        Raises:
            EvaluationError: the vectors have no score, for example because a number is not finite.
        """
        return {self.metric: self.judge(encode, prompts).score}


class StsYardstick(Yardstick):
    """Yardstick by Spearman x 100 on STS-B dev.

    If all seven STS tasks have data, their mean is a second score for comparing a runtime with the float32 graph.
    """

    metric = "STS-B dev"
    named = sts.STSB_DEV_METRIC

    def __init__(self, data: Path) -> None:
        """Read STS-B dev. Also read the seven STS tasks, if the folder `data` has at least one file of each task.

        Raises:
            DataError: STS-B dev is missing, or the files of STS-B dev or of a task to read are incomplete or broken.
        """
        self._dev: Subsets = STSB_DEV.load(data)
        self._pairs: list[Pair] = [pair for pairs in self._dev.values() for pair in pairs]
        self.sample = _hash([astuple(pair) for pair in self._pairs])
        whole = all(files.present(data) for files in STS_TASKS.values())
        self._tasks = {name: files.load(data) for name, files in STS_TASKS.items()} if whole else {}
        self.limits = {self.metric: STSB_DRIFT, **({MEAN_STS: DRIFT} if whole else {})}

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Scored:  # noqa: ARG002 - pairs have no role
        tasks = {self.metric: self._dev}
        cosines = sts.cosines(encode, tasks)
        score = sts.score(cosines, tasks)[self.metric].spearman.all
        return Scored(score, np.concatenate(list(cosines[self.metric].values())))

    def compare(self, a: Scored, b: Scored) -> Comparison:
        golds = {self.metric: np.array([pair.gold for pair in self._pairs])}
        ours, theirs = (bootstrap.resample([{self.metric: each.values}], golds) for each in (a, b))
        return ours.against(theirs)

    def scores(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> dict[str, float]:  # noqa: ARG002 - pairs have no role
        found = sts.evaluate(encode, {**self._tasks, self.metric: self._dev})
        scores = {self.metric: found.pop(self.metric).spearman.all}
        return {**scores, MEAN_STS: sts.mean_of_tasks(found)} if found else scores


class SelfRetrievalYardstick(Yardstick):
    """MRR@10 x 100 of retrieval between the halves of held-out sentences. Each half is the query for the other half."""

    metric = "self-retrieval"

    def __init__(self, corpus: Corpus) -> None:
        """Split the corpus's held-out sentences into halves.

        Raises:
            CorpusError: fewer than two held-out sentences have enough words.
        """
        self._halves = [pair for pair in map(vectors.halves, corpus.census.held_out) if pair]
        if len(self._halves) < 2:
            raise CorpusError(
                f"{corpus.name}: a score without --data needs at least two held-out sentences of "
                f"{vectors.MIN_WORDS} words or more, and there are {len(self._halves)}: one in 20 is held out"
            )
        self.sample = _hash(self._halves)
        self.limits = {self.metric: max(DRIFT, FLIPS * FLIP / len(self._halves))}

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Scored:  # noqa: ARG002 - pairs have no role
        values = 100 * vectors.reciprocal_ranks(encode, self._halves)
        return Scored(float(values.mean()), values)


class RetrievalYardstick(Yardstick):
    """nDCG@10 x 100 of retrieval on a collection of documents and queries."""

    def __init__(self, collection: Collection, metric: str, *, named: str | None) -> None:
        self._collection = collection
        self.metric = metric
        self.named = named
        self.sample = _hash([[*part.items()] for part in astuple(self._collection)])
        self.limits = {self.metric: max(DRIFT, FLIPS * SECOND / len(self._collection.queries))}

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Scored:
        found = retrieval.by_query(retrieval.rankings(encode, self._collection, prompts=prompts), self._collection)
        values = 100 * found[:, MEASURES.index(NDCG10)]
        return Scored(float(values.mean()), values)


def _corpus_yardstick(files: Sequence[str], column: str | None) -> Yardstick:
    """Return the yardstick of a corpus: known-item retrieval for passages, or self-retrieval for sentences.

    Self-retrieval is also used for passages if too few of them are held out.

    Raises:
        CorpusError: a file can't be read, or has too few texts.
    """
    if has_passages(files, column=column):
        collection = known_item.test_collection(open_corpus(files, column=column, passages=True))
        if len(collection.queries) >= LEAST_QUERIES:
            return RetrievalYardstick(collection, KNOWN_ITEMS, named=None)
    return SelfRetrievalYardstick(open_corpus(files, column=column))


def choose_yardstick(
    data: Path | None, corpus: Sequence[str], collection: str | None = None, *, column: str | None = None
) -> Yardstick:
    """Return the yardstick of a promotion.

    If `collection` is given, the yardstick uses this collection in the folder `data`. Without `collection`, it uses
    STS-B dev if `data` is given, and otherwise the corpus. If `corpus` is empty, the corpus is CPython's documentation.

    Raises:
        DataError, CorpusError: the data or corpus is missing or broken, or a collection is named without data.
        Refused: both `data` and `corpus` are given, so the corpus would be ignored.
    """
    if data is not None and corpus:
        raise Refused(
            f"--corpus {corpus[0]}: --data and --corpus both choose the data of the comparison; leave one of them out"
        )
    if collection is not None:
        if data is None:
            raise DataError(f"--retrieval {collection}: add --data DIR, a folder that contains retrieval/{collection}")
        name, split = beir.part(collection)
        # `scifact` and `scifact:test` are the same split, so the name without a split is used for both.
        metric = f"{name if split == beir.TEST else collection} {NDCG10}"
        return RetrievalYardstick(beir.find(data, collection), metric, named=metric)
    return StsYardstick(data) if data is not None else _corpus_yardstick(corpus, column)


def _hash(sample: Sequence[Sequence[object]]) -> str:
    return hashlib.sha256(json.dumps(sample).encode()).hexdigest()
