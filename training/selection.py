"""By what the best weights of a run are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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


def by_self_retrieval(held_out: Sequence[str]) -> Selection:
    """MRR@10 of finding a held-out sentence's other half: no labels needed."""
    return Selection(self_retrieval.METRIC, lambda encode: self_retrieval.mrr10(encode, held_out))
