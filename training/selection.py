"""By what the best weights of a run are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from training.corpus import Corpus, CorpusError
from training.evaluation import self_retrieval, sts
from training.evaluation.pairs import STSB_DEV
from training.evaluation.vectors import Encode


@dataclass(frozen=True)
class Selection:
    """A score, more is better, and its name in metrics and manifest."""

    metric: str
    score: Callable[[Encode], float]


def by_stsb_dev(data: Path) -> Selection:
    """Spearman x 100 on the dev part of the STS benchmark.

    Raises:
        DataError: it is missing or broken.
    """
    tasks = {"STSB-dev": STSB_DEV.load(data)}
    return Selection(sts.STSB_DEV_METRIC, lambda encode: sts.evaluate(encode, tasks)["STSB-dev"].spearman.all)


def by_self_retrieval(corpus: Corpus) -> Selection:
    """MRR@10 of finding a held-out sentence's other half: no labels needed.

    Raises:
        CorpusError: no two held-out sentences have enough words to be halved.
    """
    pairs = [pair for pair in map(self_retrieval.halves, corpus.census.held_out) if pair]
    if len(pairs) < 2:
        raise CorpusError(
            f"{corpus.name}: choosing the best without --eval-data needs two held-out sentences of "
            f"{self_retrieval.LEAST_WORDS} words or more, and there are {len(pairs)}"
        )
    return Selection(self_retrieval.METRIC, lambda encode: self_retrieval.mrr10(encode, pairs))
