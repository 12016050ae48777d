"""The effect of training on passages: retrieval of held-out passages before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from training.evaluation import bootstrap, retrieval
from training.evaluation.beir import Collection
from training.evaluation.retrieval import MEASURES, NDCG10
from training.evaluation.vectors import Encode

RESAMPLES = 1000
EXAMPLES = 3
SHOWN = 90
"""Characters of a text in an example."""


@dataclass(frozen=True)
class Found:
    """An encoder's rankings and scores on a collection."""

    rankings: Mapping[str, Sequence[str]]
    values: NDArray[np.float64]
    """nDCG@10 x 100 of each query, (Q,)."""

    @classmethod
    def by(cls, encode: Encode, collection: Collection) -> Self:
        """Search the collection for every query."""
        found = retrieval.rankings(encode, collection)
        return cls(found, 100 * retrieval.by_query(found, collection)[:, MEASURES.index(NDCG10)])

    def against(self, start: Found) -> str:
        """Format the mean, and its difference from that of `start` with an interval over the queries."""
        found = bootstrap.compare_means(self.values, start.values, resamples=RESAMPLES)
        return f"{self.values.mean():.2f}, {found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def gain(start: Encode, result: Encode, collection: Collection) -> Iterator[str]:
    """Report how well each encoder retrieves, and the queries with the largest changes."""
    before, after = (Found.by(encode, collection) for encode in (start, result))
    yield (
        f"search of passages, {len(collection.queries)} queries over {len(collection.documents)}: nDCG@10 "
        f"{before.values.mean():.2f} at the start, now {after.against(before)} (95 %, bootstrap over the queries)"
    )
    queries = list(collection.queries)
    change = np.abs(after.values - before.values)
    for place in np.argsort(-change, kind="stable")[: min(EXAMPLES, np.count_nonzero(change))]:
        query = queries[place]
        yield f"  “{_shown(collection.queries[query])}” finds first"
        for label, found in (("at the start", before), ("now", after)):
            first = found.rankings[query][0]
            mark = "its own passage" if first in collection.judgements[query] else "another one"
            yield f"    {label}: {mark}: {_shown(collection.documents[first])}"


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1].rstrip()}…"
