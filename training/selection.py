"""By what the best weights of a run are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from training.corpus.corpus import Corpus, CorpusError
from training.evaluation import geometry, self_retrieval, sts
from training.evaluation.pairs import STSB_DEV
from training.evaluation.vectors import ConstantError, Encode, remembered, unit_vectors

COLLAPSED = 0.0
"""What chance has, for an encoder that tells no two texts apart; as in self-retrieval."""


@dataclass(frozen=True)
class Selection:
    """What a run watches while it trains."""

    metric: str
    """The score that chooses, more is better; its name in metrics and manifest."""
    scores: Callable[[Encode], Mapping[str, float]]
    """It, and beside it how the vectors lie: uniformity, effective rank and, where there are labels, alignment (DCLR,
    Figure 4)."""


def by_stsb_dev(data: Path) -> Selection:
    """Spearman x 100 on the dev part of the STS benchmark.

    Raises:
        DataError: it is missing or broken.
    """
    subsets = STSB_DEV.load(data)
    pairs = [pair for subset in subsets.values() for pair in subset]

    def scores(encode: Encode) -> dict[str, float]:
        encode = remembered(encode)
        try:
            spearman = sts.evaluate(encode, {"STSB-dev": subsets})["STSB-dev"].spearman.all
        except ConstantError:  # all vectors are one: it may recover, and others are better until it does
            spearman = COLLAPSED
        return {sts.STSB_DEV_METRIC: spearman, **geometry.of_pairs(encode, pairs)}

    return Selection(sts.STSB_DEV_METRIC, scores)


def by_self_retrieval(corpus: Corpus) -> Selection:
    """MRR@10 of finding a held-out sentence's other half: no labels needed.

    Raises:
        CorpusError: no two held-out sentences have enough words to be halved.
    """
    pairs = [pair for pair in map(self_retrieval.halves, corpus.census.watched) if pair]
    if len(pairs) < 2:
        raise CorpusError(
            f"{corpus.name}: choosing the best without --eval-data needs two held-out sentences of "
            f"{self_retrieval.LEAST_WORDS} words or more, and there are {len(pairs)}"
        )

    def scores(encode: Encode) -> dict[str, float]:
        encode = remembered(encode)
        unit = unit_vectors(encode, [half for pair in pairs for half in pair])
        return {
            self_retrieval.METRIC: self_retrieval.mrr10(encode, pairs),
            "uniformity": geometry.uniformity(unit),
            "effective_rank": geometry.spectrum(unit).effective_rank,
        }

    return Selection(self_retrieval.METRIC, scores)
