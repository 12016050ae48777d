"""What is told of a corpus."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from serving.errors import Conflict
from serving.indexes.report import Report
from serving.ports import Corpus, Size


@dataclass(frozen=True)
class Description:
    """All of it."""

    corpus: Corpus
    size: Size
    index: Report | None
    """None before the first document."""
    damage: str | None = None
    """Why it can't be served, if it can't."""


class Stale(Conflict):
    """None of the encoders that are served embedded the corpus."""


def is_stale(corpus: Corpus, size: Size, served: Collection[str]) -> bool:
    """Whether none of the bundles of the fingerprints `served` embedded what the corpus holds."""
    return size.documents > 0 and corpus.fingerprint not in served


def encoder(corpus: Corpus, size: Size, served: Sequence[str]) -> str:
    """The fingerprint, among those `served`, of what embeds the texts and queries of the corpus.

    The one that it was made with; where that is gone and the corpus is empty, the first.

    Raises:
        Stale: the corpus was embedded by another bundle: vectors of different encoders are not compared.
    """
    if is_stale(corpus, size, served):
        raise Stale(
            f"corpus {corpus.name!r} was embedded by an encoder (fingerprint {str(corpus.fingerprint)[:12]}) that this "
            f"server does not serve"
        )
    return next((one for one in served if one == corpus.fingerprint), served[0])
