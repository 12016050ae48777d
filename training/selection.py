"""By what the best weights of a run are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.corpus.corpus import Corpus
from training.corpus.files import CorpusError
from training.evaluation import geometry, self_retrieval, sts
from training.evaluation.pairs import STSB_DEV, Pair, own_pairs
from training.evaluation.vectors import ConstantError, Encode, remembered, unit_vectors

OWN_DEV_METRIC = "dev_spearman"
COLLAPSED = 0.0
"""What chance has, for an encoder that tells no two texts apart; as in self-retrieval."""


@dataclass(frozen=True)
class Selection:
    """What a run watches while it trains."""

    metric: str
    """The score that chooses, more is better; its name in metrics and manifest."""
    criterion: str
    """What that score is, in words."""
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
    return _by_spearman(sts.STSB_DEV_METRIC, "STS-B dev", pairs, lambda encode: geometry.of_pairs(encode, pairs))


def by_own_pairs(file: str) -> Selection:
    """Spearman x 100 on pairs of one's own. Their scores have any scale, so none says which pairs are close.

    Raises:
        DataError: the file is missing or broken.
    """
    pairs = own_pairs(file)
    texts = sorted({text for pair in pairs for text in (pair.a, pair.b)})
    return _by_spearman(OWN_DEV_METRIC, Path(file).name, pairs, lambda encode: _spread(unit_vectors(encode, texts)))


def _by_spearman(
    metric: str, name: str, pairs: list[Pair], space: Callable[[Encode], Mapping[str, float]]
) -> Selection:
    def scores(encode: Encode) -> dict[str, float]:
        encode = remembered(encode)
        try:
            spearman = sts.evaluate(encode, {metric: {name: pairs}})[metric].spearman.all
        except ConstantError:  # all vectors are one: it may recover, and others are better until it does
            spearman = COLLAPSED
        return {metric: spearman, **space(encode)}

    return Selection(metric, f"Spearman x 100 on the {len(pairs)} pairs of {name}", scores)


def by_self_retrieval(corpus: Corpus) -> Selection:
    """MRR@10 of finding a held-out sentence's other half: no labels needed.

    Raises:
        CorpusError: no two held-out sentences have enough words to be halved.
    """
    pairs = [pair for pair in map(self_retrieval.halves, corpus.census.watched) if pair]
    if len(pairs) < 2:
        raise CorpusError(
            f"{corpus.name}: choosing the best without --dev-data and --eval-data needs two held-out sentences of "
            f"{self_retrieval.LEAST_WORDS} words or more, and there are {len(pairs)}: one in 20 is held out"
        )

    def scores(encode: Encode) -> dict[str, float]:
        encode = remembered(encode)
        unit = unit_vectors(encode, [half for pair in pairs for half in pair])
        return {self_retrieval.METRIC: self_retrieval.mrr10(encode, pairs), **_spread(unit)}

    criterion = f"MRR@10 of one half of a held-out sentence finding its other half, over {len(pairs)} sentences"
    return Selection(self_retrieval.METRIC, criterion, scores)


def _spread(unit: NDArray[np.float64]) -> dict[str, float]:
    return {"uniformity": geometry.uniformity(unit), "effective_rank": geometry.spectrum(unit).effective_rank}
