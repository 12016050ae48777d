"""Arrangement of ranked passages: order by metadata, diversity and groups.

An arrangement looks at the best `CANDIDATES` passages of a search. It only reads the ids and the metadata of the
candidates. The texts of the chosen passages are read afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.filters import is_number, values_at, with_id
from serving.corpora.ports import Document, Ranking, Scalar
from serving.operations.threads import check_cancelled

CANDIDATES = 1000
"""Number of the best passages that an arrangement chooses from."""
DIVERSE = 200
"""Number of the best passages that diversity chooses from. Each of them is compared with each chosen one."""


class Sort(NamedTuple):
    """An order by a metadata field, given as a dotted path."""

    path: str
    descending: bool = False


def value_at(document: Document, path: str) -> Scalar:
    """Return the first scalar at `path`, or None. A list counts by its first element. `$id` is the document's id."""
    for found in values_at(with_id(document.metadata, document.id), path):
        for value in found if isinstance(found, list) else (found,):
            if isinstance(value, str | int | float | bool):
                return value
    return None


def sorted_by(documents: Sequence[Document], orders: Sequence[Sort]) -> list[int]:
    """Return the positions of `documents` in the given orders. The first order counts most.

    Numbers come before strings, and false before true. Documents without the field come last in either direction. Equal
    documents keep their order.
    """
    positions = list(range(len(documents)))
    for order in reversed(orders):
        values = [_sortable(value_at(document, order.path)) for document in documents]
        positions.sort(key=lambda i: values[i] or (), reverse=order.descending)
        positions.sort(key=lambda i: values[i] is None)
    return positions


def _sortable(value: Scalar) -> tuple[int, Any] | None:
    if value is None or (isinstance(value, float) and not is_number(value)):
        return None
    return (2 if isinstance(value, str) else 0 if isinstance(value, bool) else 1), value


def diverse(relevance: Floats, vectors: Floats, diversity: float, k: int) -> list[int]:
    """Return the positions of `k` candidates by maximal marginal relevance.

    Each step takes the candidate with the greatest (1 - `diversity`) · relevance - `diversity` · (greatest cosine to
    a candidate that was already taken). See Carbonell and Goldstein, "The use of MMR, diversity-based reranking for
    reordering documents and producing summaries", SIGIR 1998.

    Args:
        relevance: (N,) scores of the candidates.
        vectors: (N, D) unit vectors of the candidates.
        diversity: weight in [0, 1]. 0 keeps the order by relevance.
        k: number of candidates to take.
    """
    nearest = np.zeros(len(relevance), np.float32)
    left = np.ones(len(relevance), np.bool_)
    taken: list[int] = []
    while len(taken) < min(k, len(relevance)):
        check_cancelled()
        gain = np.where(left, (1 - diversity) * relevance - diversity * nearest, -np.inf)
        best = int(gain.argmax())
        cosines = vectors @ vectors[best]
        nearest = np.maximum(nearest, cosines) if taken else cosines
        left[best] = False
        taken.append(best)
    return taken


def grouped(
    documents: Mapping[int, Document], ranking: Ranking, path: str, groups: slice, size: int
) -> tuple[list[int], int]:
    """Return the positions in `ranking` of up to `size` passages of each group, and the number of groups found.

    A group has the passages whose documents have one value at `path`. Groups are in the order of their best passage,
    and `groups` selects some of them. Passages of documents without a value are left out.
    """
    found: dict[tuple[type, Scalar], list[int]] = {}
    for i, key in enumerate(ranking.keys.tolist()):
        value = value_at(documents[key], path) if key in documents else None
        if value is not None:
            members = found.setdefault(
                (bool if isinstance(value, bool) else str if isinstance(value, str) else float, value), []
            )
            if len(members) < size:
                members.append(i)
    chosen = list(found.values())[groups]
    return [i for members in chosen for i in members], len(found)
