"""Descriptions of corpora, and the choice of their encoders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from serving.errors import Conflict
from serving.indexes.report import Report
from serving.ports import Corpus, Size


@dataclass(frozen=True)
class Description:
    """A corpus, its size, its index, and its damage, if any."""

    corpus: Corpus
    size: Size
    index: Report | None
    """The report of the index; None before the first document."""
    damage: str | None = None
    """The reason why the corpus can't be served, if it can't."""


class Stale(Conflict):
    """No served encoder embedded this corpus."""


def is_stale(corpus: Corpus, size: Size, served: Collection[str]) -> bool:
    """Return whether the corpus has documents that no bundle of the fingerprints `served` embedded."""
    return size.documents > 0 and corpus.fingerprint not in served


def encoder(corpus: Corpus, size: Size, served: Sequence[str]) -> str:
    """Return the fingerprint of the served encoder that embeds the texts and queries of the corpus.

    This is the encoder that embedded the corpus. If that encoder is not served and the corpus is empty, it is the first
    served encoder.

    Raises:
        Stale: the corpus was embedded by a bundle that is not served. Vectors of different encoders can't be compared.
    """
    if is_stale(corpus, size, served):
        raise Stale(
            f"corpus {corpus.name!r} was embedded by an encoder (fingerprint {str(corpus.fingerprint)[:12]}) that this "
            f"server does not serve"
        )
    return next((one for one in served if one == corpus.fingerprint), served[0])
