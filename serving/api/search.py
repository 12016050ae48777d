"""Search in a corpus: by meaning, by words, or both."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response

from models.runtimes.base import Floats
from serving.api.middleware.unread_answers import largest_answer
from serving.api.routing.answers import json_response, truncation_header, written
from serving.api.routing.auth import check_corpus_allowed
from serving.api.routing.deps import CLOSED, CorpusName, ServiceDep
from serving.api.routing.route import Route
from serving.api.schemas.corpora import CorpusSearchRequest, SearchAnswer, SearchRequest, warnings_of
from serving.corpora.filters import compile_filter, is_large
from serving.corpora.search import Cursor, Hit, SearchOptions, SearchResult, shown
from serving.errors import Empty, Invalid, TooLarge
from serving.operations.bounds import check_corpus_name, check_text
from serving.operations.json_body import LARGE
from serving.service import Service

DEEPEST = 100_000_000
"""Maximum number of hits before a cursor."""

router = APIRouter(tags=["search"], route_class=Route, dependencies=CLOSED)
_DOCUMENTED: dict[str, Any] = {"response_model": SearchAnswer, "response_model_exclude_unset": True}


@router.post("/corpora/{name}/search", summary="Search a corpus", **_DOCUMENTED)
async def search(name: CorpusName, body: SearchRequest, service: ServiceDep) -> Response:
    """Find the passages that best answer a query, several queries, or a vector.

    `dense` searches by meaning, `lexical` by words (BM25; a phrase in double quotes must occur), `hybrid` by both.
    """
    if body.corpus not in (None, name):
        raise Invalid(f"is not {name!r}, which the path names", field="corpus")
    return await _search(service, name, body)


@router.post("/search", summary="Search the corpus named in the body", **_DOCUMENTED)
async def search_named(body: CorpusSearchRequest, service: ServiceDep, request: Request) -> Response:
    """Search as /corpora/{name}/search does."""
    return await _search(service, check_corpus_allowed(check_corpus_name(body.corpus), request), body)


async def _search(service: Service, name: str, body: SearchRequest) -> Response:
    started = time.perf_counter()
    queries = _queries(body, service.settings.max_text_bytes)
    where, orders = await service.library.prepare(
        lambda: (compile_filter(body.filter) if body.filter else None, _orders(name, body)),
        of=name,
        large=bool(body.filter or body.queries) and is_large([body.filter, body.queries]),
    )
    options = SearchOptions(
        k=body.k,
        offset=body.offset,
        after=_after(orders, body),
        mode=body.mode,
        fusion=body.fusion,
        alpha=body.alpha,
        exact=body.exact,
        where=where,
        min_score=body.min_score,
        with_vector=body.with_vector,
        highlight=body.highlight,
        max_characters=service.settings.max_search_characters,
    )
    hits, limit = len(queries) * (body.k + body.offset), service.settings.max_search_hits
    if hits > limit:
        raise TooLarge(
            f"{hits} hits, over all queries and with the offset, are more than the {limit} of one request: "
            "the cursor of an answer leads to what follows it",
            field="k",
        )
    found = await service.library.search(name, queries, options)
    write = _Written(body, largest_answer(service.settings))

    def answered() -> Response:
        results = [_result(found, hits, order, write) for hits, order in zip(found.hits, orders, strict=True)]
        answer: dict[str, Any] = {"results": results} if body.queries is not None else results[0]
        took = round(1000 * (time.perf_counter() - started), 3)
        facts: dict[str, Any] = {"took_ms": took, "mode": body.mode, "index": found.index}
        if found.warnings:
            facts["warnings"] = warnings_of(found.warnings)
        return json_response(answer | facts, headers=truncation_header(found.truncated))

    characters = sum(len(hit.passage.document.text) for hits in found.hits for hit in hits)
    return await service.library.prepare(answered, of=name, large=characters >= LARGE)


def _queries(body: SearchRequest, most: int) -> list[str] | Floats:
    """Return the validated queries.

    Lexical search uses no encoder, so this function refuses illegal texts.
    """
    given = [name for name in ("query", "queries", "vector") if getattr(body, name) is not None]
    if len(given) != 1:
        raise Invalid(f"give one of query, queries and vector, not {len(given)} of them", field="query")
    if body.vector is not None and body.mode != "dense":
        raise Invalid(f"{body.mode} search looks for words: give query or queries", field="vector")
    if body.vector is not None and body.highlight:
        raise Invalid("words of a query are highlighted: give query or queries", field="highlight")
    if body.query is not None:
        check_text(body.query, most, "query")
        return [body.query]
    if body.queries is not None:
        if not body.queries:
            raise Empty("must hold at least one query", field="queries")
        for i, query in enumerate(body.queries):
            check_text(query, most, f"queries.{i}")
        return body.queries
    return _unit(body.vector or [])


def _unit(numbers: list[float]) -> Floats:
    """Return a vector as a unit vector (1, D).

    It is scaled in float64, so that no finite vector overflows or underflows in float32.
    """
    vector = np.array([numbers], dtype=np.float64)
    largest = float(np.abs(vector).max(initial=0.0))
    if not largest:
        raise Invalid("has no direction: it is empty or all zeros", field="vector")
    scaled: Floats = (vector / largest).astype(np.float32)
    return scaled


class _Written:
    """Writer of hits as JSON.

    It writes one hit at a time, so that a too large answer is refused before it is complete.
    """

    def __init__(self, body: SearchRequest, most: int) -> None:
        self.body, self._most, self._bytes = body, most, 0

    def __call__(self, hit: Hit) -> orjson.Fragment:
        """Write the next hit.

        Raises:
            TooLarge: the hits so far have too many bytes for one answer.
        """
        hit_bytes = written(_hit(hit, self.body))
        self._bytes += len(hit_bytes)
        if self._bytes > self._most:
            raise TooLarge(
                f"the hits are more than the {self._most} bytes of one answer: ask for fewer hits", field="k"
            )
        return orjson.Fragment(hit_bytes)


def _result(found: SearchResult, hits: Sequence[Hit], order: str, write: _Written) -> dict[str, Any]:
    """Return the hits of a query as JSON, with a cursor if the page is full."""
    more = len(hits) == write.body.k
    cursor = _cursor(order, found.behind(hits[-1])) if more else None
    return {"hits": [write(hit) for hit in hits], "cursor": cursor}


def _hit(hit: Hit, body: SearchRequest) -> dict[str, Any]:
    document, span = hit.passage
    answer: dict[str, Any] = {"id": document.id, "score": shown(hit.score)}
    if body.mode == "hybrid":
        answer |= {"dense": _rounded(hit.dense), "lexical": _rounded(hit.lexical)}
    if span is not None:
        answer["span"] = {"start": span.start, "end": span.end}
    if body.with_text:
        answer["text"] = hit.text
    if body.with_metadata:
        answer["metadata"] = document.metadata
    if body.with_vector:
        answer["vector"] = hit.vector
    if body.highlight:
        answer["highlights"] = [{"start": start, "end": end} for start, end in hit.highlights]
    return answer


def _rounded(score: float | None) -> float | None:
    return None if score is None else shown(score)


def _cursor(order: str, place: Cursor) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([order, *place])).decode().rstrip("=")


def _after(orders: Sequence[str], body: SearchRequest) -> Cursor | None:
    if body.cursor is None:
        return None
    if body.queries is not None:
        raise Invalid("belongs to one query: give it with query or vector", field="cursor")
    try:
        sent = body.cursor.encode("ascii")
        order, generation, seen, score, key = orjson.loads(base64.urlsafe_b64decode(sent + b"=" * (-len(sent) % 4)))
        place = Cursor(str(generation), int(seen), float(score), int(key))
        if not (0 < place.seen <= DEEPEST and 0 < place.key < 2**63):
            raise ValueError(place)
    except (ValueError, TypeError) as error:  # binascii.Error and orjson.JSONDecodeError are ValueErrors
        raise Invalid("not a cursor of this server", field="cursor") from error
    if [order] != orders:
        raise Invalid("of another search: what is looked for, and where, must stay the same", field="cursor")
    return place


def _orders(name: str, body: SearchRequest) -> list[str]:
    """Return, for each query, a digest of everything that determines the order of its hits.

    The digest includes the corpus, because keys belong to one corpus. A query has the same digest alone and among
    several queries.
    """
    asked = {"mode": body.mode, "fusion": body.fusion, "alpha": body.alpha, "filter": body.filter}
    alike = _digest([name, asked])
    sought: list[Any] = body.queries or [body.query if body.query is not None else body.vector]
    return [_digest([alike, one]) for one in sought]


def _digest(value: Any) -> str:
    try:
        written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer of more than 64 bits
        written = json.dumps(value, sort_keys=True).encode()
    return hashlib.blake2b(written, digest_size=8).hexdigest()
