"""Criteria for selecting the best weights of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from models.bundle.prompts import DOCUMENT, NO_PROMPTS, prompt_for
from training.data.corpus import Corpus
from training.data.files import CorpusError
from training.evaluation import geometry, known_item, retrieval, sts, vectors
from training.evaluation.pairs import SICKR_DEV, STSB_DEV, Pair, own_pairs
from training.evaluation.vectors import ConstantError, Encode, cached, unit_vectors

OWN_DEV_METRIC = "dev_spearman"
SICKR_DEV_METRIC, STS_DEV_METRIC = "sickr_dev_spearman", "sts_dev_spearman"
COLLAPSED = 0.0
"""Score of a collapsed encoder, which gives every text the same vector. The chance level of Spearman and MRR is 0."""


@dataclass(frozen=True)
class Selection:
    """The score that selects the best weights of a run, and the measures that are logged with the score."""

    metric: str
    """Name of the score in metrics and manifest. A higher score is better."""
    criterion: str
    """Description of the score in words."""
    scores: Callable[[Encode], Mapping[str, float]]
    """Function that computes the score and the logged measures, such as uniformity and effective rank.

    Alignment is measured only on STS-B dev, because it needs pairs of similar sentences.
    """
    data: str = ""
    """Digest of the scored pairs, or "" if the score needs no data other than the corpus."""


def by_stsb_dev(data: Path) -> Selection:
    """Return the `Selection` that chooses the best weights of a run by Spearman x 100 on STS-B dev.

    Raises:
        DataError: STS-B dev is missing or broken.
    """
    subsets = STSB_DEV.load(data)
    pairs = [pair for subset in subsets.values() for pair in subset]
    return _by_spearman(sts.STSB_DEV_METRIC, "STS-B dev", pairs, lambda encode: geometry.of_pairs(encode, pairs))


def by_sts_dev(data: Path) -> Selection:
    """Return the selection of the best weights by the mean Spearman x 100 of STS-B dev and SICK-R dev, as in DCLR.

    Raises:
        DataError: a dev set is missing or broken.
    """
    stsb = by_stsb_dev(data)
    sickr = [pair for subset in SICKR_DEV.load(data).values() for pair in subset]

    def scores(encode: Encode) -> dict[str, float]:
        encode = cached(encode)
        found = {**stsb.scores(encode), SICKR_DEV_METRIC: _spearman(encode, sickr)}
        return {STS_DEV_METRIC: fmean((found[stsb.metric], found[SICKR_DEV_METRIC])), **found}

    criterion = f"the mean of {stsb.criterion} and on the {len(sickr)} of SICK-R dev"
    return Selection(STS_DEV_METRIC, criterion, scores, stsb.data + _digest(sickr))


def by_own_pairs(file: str) -> Selection:
    """Return the selection of the best weights by Spearman x 100 on the user's own pairs.

    Alignment is not measured, because it needs pairs of similar sentences. The scale of the user's scores is unknown,
    so no threshold tells which pairs are similar.

    Raises:
        DataError, Refused, RemoteError: see `training.evaluation.pairs.own_pairs`.
    """
    pairs = own_pairs(file)
    texts = sorted({text for pair in pairs for text in (pair.a, pair.b)})
    return _by_spearman(OWN_DEV_METRIC, Path(file).name, pairs, lambda encode: _spread(unit_vectors(encode, texts)))


def _by_spearman(
    metric: str, name: str, pairs: list[Pair], space: Callable[[Encode], Mapping[str, float]]
) -> Selection:
    def scores(encode: Encode) -> dict[str, float]:
        encode = cached(encode)
        return {metric: _spearman(encode, pairs), **space(encode)}

    return Selection(metric, f"Spearman x 100 on the {len(pairs)} pairs of {name}", scores, _digest(pairs))


def _digest(pairs: list[Pair]) -> str:
    return hashlib.blake2b(repr(pairs).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _spearman(encode: Encode, pairs: list[Pair]) -> float:
    try:
        return sts.evaluate(encode, {"dev": {"pairs": pairs}})["dev"].spearman.all
    # All vectors are equal. The encoder may recover later, so the run continues with the lowest score.
    except ConstantError:
        return COLLAPSED


def by_self_retrieval(corpus: Corpus) -> Selection:
    """Return the selection of the best weights by MRR@10 of halves of sentences.

    Each half of a held-out sentence is the query for the other half.

    Raises:
        CorpusError: fewer than two held-out sentences have enough words to be halved.
    """
    pairs = [pair for pair in map(vectors.halves, corpus.census.monitored) if pair]
    if len(pairs) < 2:
        raise CorpusError(
            f"{corpus.name}: without --dev-data and --eval-data, the selection of the best weights needs two or more "
            f"held-out sentences of {vectors.MIN_WORDS} words or more, but there are {len(pairs)}; one sentence in 20 "
            "is held out"
        )

    def scores(encode: Encode) -> dict[str, float]:
        encode = cached(encode)
        unit = unit_vectors(encode, [half for pair in pairs for half in pair])
        return {vectors.METRIC: float(vectors.reciprocal_ranks(encode, pairs).mean()), **_spread(unit)}

    criterion = f"MRR@10 of one half of a held-out sentence finding its other half, over {len(pairs)} sentences"
    return Selection(vectors.METRIC, criterion, scores)


def by_known_items(corpus: Corpus, prompts: Mapping[str, str] = NO_PROMPTS) -> Selection:
    """Return the selection of the best weights by known-item retrieval (nDCG@10 x 100).

    The queries are titles of held-out passages, and parts taken out of their texts. Each query must find its passage.
    `prompts` are the encoder's prompts.

    Raises:
        CorpusError: no held-out passage has a suitable title or part, or the corpus has changed since it was first
            read.
    """
    collection = known_item.selection_collection(corpus)
    if not collection.queries:
        raise CorpusError(
            f"{corpus.name}: without --dev-data and --eval-data, the best weights are selected by held-out "
            "passages with a title "
            f"or several sentences; {len(corpus.census.held_out)} are held out, and none of them is suitable; "
            "use --preset minilm for sentences"
        )

    prefix = prompt_for(prompts, DOCUMENT) or ""

    def scores(encode: Encode) -> dict[str, float]:
        encode = cached(encode)
        unit = unit_vectors(encode, [prefix + text for text in collection.documents.values()])
        return {known_item.METRIC: retrieval.evaluate(encode, collection, prompts=prompts).ndcg10, **_spread(unit)}

    criterion = (
        f"nDCG@10 of titles and sentences finding their held-out passages, {len(collection.queries)} queries over "
        f"{len(collection.documents)} passages"
    )
    return Selection(known_item.METRIC, criterion, scores)


def _spread(unit: NDArray[np.float64]) -> dict[str, float]:
    return {"uniformity": geometry.uniformity(unit), "effective_rank": geometry.spectrum(unit).effective_rank}
