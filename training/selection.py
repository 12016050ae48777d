"""By what the best weights of a run are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from training.corpus.corpus import Corpus
from training.corpus.files import CorpusError
from training.evaluation import geometry, known_item, retrieval, self_retrieval, sts
from training.evaluation.pairs import SICKR_DEV, STSB_DEV, Pair, own_pairs
from training.evaluation.vectors import ConstantError, Encode, remembered, unit_vectors

OWN_DEV_METRIC = "dev_spearman"
SICKR_DEV_METRIC, STS_DEV_METRIC = "sickr_dev_spearman", "sts_dev_spearman"
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


def by_sts_dev(data: Path) -> Selection:
    """The mean of Spearman x 100 on the dev parts of the STS benchmark and of SICK-R, as DCLR has it.

    Raises:
        DataError: one is missing or broken.
    """
    stsb = by_stsb_dev(data)
    sickr = [pair for subset in SICKR_DEV.load(data).values() for pair in subset]

    def scores(encode: Encode) -> dict[str, float]:
        encode = remembered(encode)
        found = {**stsb.scores(encode), SICKR_DEV_METRIC: _spearman(encode, sickr)}
        return {STS_DEV_METRIC: fmean((found[stsb.metric], found[SICKR_DEV_METRIC])), **found}

    criterion = f"the mean of {stsb.criterion} and on the {len(sickr)} of SICK-R dev"
    return Selection(STS_DEV_METRIC, criterion, scores)


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
        return {metric: _spearman(encode, pairs), **space(encode)}

    return Selection(metric, f"Spearman x 100 on the {len(pairs)} pairs of {name}", scores)


def _spearman(encode: Encode, pairs: list[Pair]) -> float:
    try:
        return sts.evaluate(encode, {"dev": {"pairs": pairs}})["dev"].spearman.all
    except ConstantError:  # all vectors are one: it may recover, and others are better until it does
        return COLLAPSED


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


def by_known_items(corpus: Corpus) -> Selection:
    """nDCG@10 x 100 of finding a held-out passage by its title and by a sentence of it: no labels needed.

    Raises:
        CorpusError: no held-out passage has a title, or a sentence besides others.
    """
    collection = known_item.choosing(corpus)
    if not collection.queries:
        raise CorpusError(
            f"{corpus.name}: choosing the best without --dev-data and --eval-data needs held-out passages with a title "
            f"or several sentences; {len(corpus.census.held_out)} are held out, and none has; "
            "--preset minilm takes sentences"
        )

    def scores(encode: Encode) -> dict[str, float]:
        encode = remembered(encode)
        unit = unit_vectors(encode, list(collection.documents.values()))
        return {known_item.METRIC: retrieval.evaluate(encode, collection).ndcg10, **_spread(unit)}

    criterion = (
        f"nDCG@10 of titles and sentences finding their held-out passages, {len(collection.queries)} queries over "
        f"{len(collection.documents)} passages"
    )
    return Selection(known_item.METRIC, criterion, scores)


def _spread(unit: NDArray[np.float64]) -> dict[str, float]:
    return {"uniformity": geometry.uniformity(unit), "effective_rank": geometry.spectrum(unit).effective_rank}
