"""Orders of documents and passages: fused rankings, order by metadata, diversity, groups and sorted lists.

An arrangement (sort, diversity or groups) chooses passages from the candidates, which are the best passages of a
search. An arrangement does not read the texts of the candidates. The texts of the chosen passages are read afterwards.
"""

from __future__ import annotations

import base64
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import orjson

from models.runtimes.base import Floats
from serving.corpora.filters import Filter, In, Near, distance, instant, is_number, point, values_at, with_id
from serving.corpora.indexes.exact import best, rounded, union
from serving.corpora.ports import Ranking
from serving.corpora.values import Document, Keys, Place, Scalar, Sort
from serving.errors import Invalid
from serving.operations.threads import check_cancelled

P = TypeVar("P", int, str)
CANDIDATES = 1000
"""Number of best passages of a search from which an arrangement chooses. To find enough groups, a search may examine
more passages."""
DIVERSE = 200
"""Number of best passages of a search from which diversity chooses. The number is smaller than `CANDIDATES`, because
each of these passages is compared with each chosen passage."""


def read_sorts(given: Sequence[str | Sort]) -> list[Sort]:
    """Parse orders such as `year:desc`. Orders that are already parsed are returned unchanged.

    Raises:
        Invalid: an order has no field, or its direction is neither `asc` nor `desc`.
    """
    sorts = []
    for i, one in enumerate(given):
        if isinstance(one, Sort):
            sorts.append(one)
            continue
        path, _, order = one.rpartition(":")
        order = order.lower()
        if not path or order not in ("asc", "desc"):
            raise Invalid("must be a field and asc or desc, such as year:desc", field=f"sort.{i}")
        sorts.append(Sort(path, descending=order == "desc"))
    return sorts


def value_at(document: Document, path: str) -> Scalar:
    """Return the first string, number or boolean at `path` in the metadata, or None if there is none.

    If the value at `path` is a list, its elements are searched. For the path `$id`, return the document's id.
    """
    found = elements_at(with_id(document.metadata, document.id), path)
    return next((value for value in found if isinstance(value, str | int | float | bool)), None)


def elements_at(metadata: Mapping[str, Any], path: str) -> Iterator[Any]:
    """Yield all values at a dotted path. If a value is a list, yield its elements instead."""
    for found in values_at(metadata, path):
        yield from found if isinstance(found, list) else (found,)


def sort_value(document: Document, order: Sort) -> Scalar:
    """Return the value by which `order` sorts `document`, or None if the document has no such value.

    With `order.near`, the value is the distance in metres from `order.near` to the nearest point at `order.path`.
    """
    if order.near is None:
        return value_at(document, order.path)
    elements = elements_at(document.metadata, order.path)
    return min((distance(found, order.near) for one in elements if (found := point(one))), default=None)


def has_scalar(path: str) -> Filter:
    """Return a filter that no document can match if none has a string, number or boolean at `path`."""
    return In(path, ("", 0, False))


def has_sort_value(order: Sort) -> Filter:
    """Return a filter that no document can match if none has a value by which `order` sorts."""
    return has_scalar(order.path) if order.near is None else Near(order.path, order.near, 0)


def sorted_by(documents: Sequence[Document], orders: Sequence[Sort]) -> list[int]:
    """Sort `documents` by `orders`, and return their positions in `documents`. The first order has priority.

    In ascending order, false comes before true, booleans before numbers, numbers before dates, and dates before other
    strings. Dates are ordered as points in time. Documents without a value come last, both in ascending and in
    descending order. Documents with equal values keep their order.
    """
    positions = list(range(len(documents)))
    for order in reversed(orders):
        values = [_sort_key(sort_value(document, order)) for document in documents]
        positions.sort(key=lambda i: values[i] or (), reverse=order.descending)
        positions.sort(key=lambda i: values[i] is None)
    return positions


def _sort_key(value: Scalar) -> tuple[int, Any] | None:
    if value is None or (isinstance(value, float) and not is_number(value)):
        return None
    if isinstance(value, str):
        return (3, value) if (moment := instant(value)) is None else (2, moment)
    return (0 if isinstance(value, bool) else 1), value


# The following functions return pages of a sorted list of documents.

COMPARED = 256
"""Number of characters at the beginning of a string that a sorted list compares. A cursor contains these characters,
so their number is limited."""


def first_sorted(
    listed: Iterable[tuple[P, Document]], orders: Sequence[Sort], after: Place | None, limit: int
) -> list[P]:
    """Sort documents by `orders`. Return the positions of the first `limit` documents after the place `after`.

    `listed` yields each document with its position in the unsorted list. Documents are sorted as in `sorted_by`, with
    two differences: only the first `COMPARED` characters of strings are compared, and documents with equal values are
    ordered by their positions.
    """
    behind = None if after is None else (_key(after.values, orders), after.position)
    keyed = ((_key(place_values(document, orders), orders), position) for position, document in listed)
    return [
        position for _, position in heapq.nsmallest(limit, (one for one in keyed if behind is None or one > behind))
    ]


def place_values(document: Document, orders: Sequence[Sort]) -> list[Scalar]:
    values = (sort_value(document, order) for order in orders)
    return [value[:COMPARED] if isinstance(value, str) else value for value in values]


def written_place(place: Place, orders: Sequence[Sort]) -> str:
    told = orjson.dumps([[order.path, order.descending] for order in orders] + [[*place.values], place.position])
    return base64.urlsafe_b64encode(told).decode().rstrip("=")


def read_place(text: str, orders: Sequence[Sort], position: type[int] | type[str]) -> Place:
    """Parse a place in a sorted list, as written by `written_place`. Its position must be of the type `position`.

    Raises:
        Invalid: `text` is not a place, its position has another type, or the place belongs to a list in another order.
    """
    try:
        *of, values, found = orjson.loads(base64.urlsafe_b64decode(f"{text}=="))
    except (ValueError, TypeError):
        raise Invalid("is not a cursor of a sorted list", field="cursor") from None
    if of != [[order.path, order.descending] for order in orders]:
        raise Invalid("belongs to a list in another order: begin with the first page", field="cursor")
    known = isinstance(values, list) and len(values) == len(orders) and all(isinstance(one, Scalar) for one in values)
    if not known or type(found) is not position:
        raise Invalid("is not a cursor of a sorted list", field="cursor")
    return Place(values, found)


def _key(values: Sequence[Scalar], orders: Sequence[Sort]) -> list[tuple[bool, Any]]:
    keys = map(_sort_key, values)
    return [
        (value is None, _Descending(value) if order.descending else value)
        for value, order in zip(keys, orders, strict=True)
    ]


@dataclass(frozen=True)
class _Descending:
    """Wrapper that makes values sort in descending order."""

    value: Any

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    def __gt__(self, other: _Descending) -> bool:
        return bool(other.value > self.value)


def diverse(relevance: Floats, vectors: Floats, diversity: float, k: int) -> list[int]:
    """Return the positions of `k` candidates that are chosen by maximal marginal relevance.

    Each step chooses the candidate with the greatest (1 - `diversity`) · relevance - `diversity` · (greatest cosine to
    a candidate that was already chosen). See Carbonell and Goldstein, "The use of MMR, diversity-based reranking for
    reordering documents and producing summaries", SIGIR 1998.

    Args:
        relevance: (N,) scores of the candidates.
        vectors: (N, D) unit vectors of the candidates.
        diversity: weight in [0, 1]. 0 keeps the order by relevance.
        k: number of candidates to choose.
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
    """Group the passages of `ranking` by the value at `path` in their documents, and choose passages of some groups.

    Return the positions of the chosen passages in `ranking`, and the number of all groups. `documents` maps the key of
    each passage to its document. Passages of documents without a value are left out. Groups are ordered by their best
    passage. The slice `groups` selects groups, and the first `size` passages of each selected group are chosen.
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


# The following functions fuse a dense and a lexical ranking of the same passages.

RRF_CONSTANT = 60
"""The constant k of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009, "Reciprocal rank fusion outperforms
Condorcet and …")."""
Fusion = Literal["rrf", "weighted"]


def fuse(dense: Ranking, lexical: Ranking, k: int, fusion: Fusion, alpha: float) -> Ranking:
    """Return the best `k` passages of the two rankings together, with their fused scores.

    With `rrf`, the fused score of a passage is the sum of 1 / (60 + rank) over the rankings that contain the passage.
    Ranks begin with 1.

    With `weighted`, `scaled_to_one` first scales the scores of each ranking. The fused score of a passage is then
    `alpha` · (score in `dense`) + (1 - `alpha`) · (score in `lexical`), with `alpha` in [0, 1]. A passage that is not
    in a ranking has the score 0 in this ranking.
    """
    keys: Keys = union(dense.keys, lexical.keys)
    scores = np.zeros(len(keys))
    for ranking, weight in ((dense, alpha), (lexical, 1 - alpha)):
        if fusion == "rrf":
            part = (1.0 / (RRF_CONSTANT + 1 + np.arange(len(ranking.keys)))).astype(np.float32)
        else:
            part = weight * scaled_to_one(ranking)
        scores[np.searchsorted(keys, ranking.keys)] += part
    return best(keys, rounded(scores.astype(np.float32)), k)


def continued(ranking: Ranking, others: Ranking, k: int) -> Ranking:
    """Append to `ranking` the passages that only `others` contains, with score 0. Return the first `k` passages."""
    behind = others.keys[~np.isin(others.keys, ranking.keys)]
    scores = np.concatenate([ranking.scores, np.zeros(len(behind), np.float32)])
    return Ranking(np.concatenate([ranking.keys, behind])[:k], scores[:k])


def scaled_to_one(ranking: Ranking) -> Floats:
    """Scale the scores, so that the lowest becomes 0 and the highest becomes 1. Return the scaled scores.

    If all scores are equal, all become 1, because each passage is a match.
    """
    scores = ranking.scores.astype(np.float32)
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    scaled: Floats = (scores - low) / (high - low) if high > low else np.ones_like(scores)
    return scaled
