"""Semantic search in a corpus."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from serving.api.answers import json_response, truncation_header
from serving.api.auth import check_corpus_allowed
from serving.api.corpus_schemas import CorpusSearchRequest, SearchAnswer, SearchRequest
from serving.api.deps import CorpusName, ServiceDep
from serving.api.route import Route
from serving.corpora import Hit, Wanted
from serving.errors import Empty, Invalid, TooLarge
from serving.filters import compile_filter
from serving.names import check_corpus_name
from serving.ports import Floats
from serving.service import Service

router = APIRouter(tags=["search"], route_class=Route)
_DOCUMENTED: dict[str, Any] = {"response_model": SearchAnswer, "response_model_exclude_unset": True}


@router.post("/corpora/{name}/search", summary="Search a corpus", **_DOCUMENTED)
async def search(name: CorpusName, body: SearchRequest, service: ServiceDep) -> Response:
    """The documents nearest in meaning to a query, several queries, or a vector."""
    return await _search(service, name, body)


@router.post("/search", summary="Search the corpus named in the body", **_DOCUMENTED)
async def search_named(body: CorpusSearchRequest, service: ServiceDep, request: Request) -> Response:
    """As /corpora/{name}/search."""
    return await _search(service, check_corpus_allowed(check_corpus_name(body.corpus), request), body)


async def _search(service: Service, name: str, body: SearchRequest) -> Response:
    started = time.perf_counter()
    if body.mode != "dense":
        raise Invalid(f"{body.mode} search is not there yet, only dense", field="mode")
    queries = _queries(body)
    hits, limit = len(queries) * (body.k + body.offset), service.settings.max_search_hits
    if hits > limit:
        raise TooLarge(
            f"{hits} hits, over all queries and with the offset, are more than the {limit} of one request", field="k"
        )
    wanted = Wanted(
        k=body.k,
        offset=body.offset,
        where=compile_filter(body.filter) if body.filter else None,
        min_score=body.min_score,
        with_vector=body.with_vector,
        max_characters=service.settings.max_search_characters,
    )
    found = await service.search(name, queries, wanted)
    results = [[_hit(hit, body) for hit in hits] for hits in found.hits]
    answer: dict[str, Any] = {"hits": results[0]}
    if body.queries is not None:
        answer = {"results": [{"hits": hits} for hits in results]}
    took = round(1000 * (time.perf_counter() - started), 3)
    facts = {"took_ms": took, "mode": body.mode, "index": service.settings.index}
    return json_response(answer | facts, headers=truncation_header(found.truncated))


def _queries(body: SearchRequest) -> list[str] | Floats:
    given = [name for name in ("query", "queries", "vector") if getattr(body, name) is not None]
    if len(given) != 1:
        raise Invalid(f"give one of query, queries and vector, not {len(given)} of them", field="query")
    if body.query is not None:
        return [body.query]
    if body.queries is not None:
        if not body.queries:
            raise Empty("must hold at least one query", field="queries")
        return body.queries
    return _unit(body.vector or [])


def _unit(numbers: list[float]) -> Floats:
    """(1, D), scaled in float64 so that no finite vector overflows or vanishes in float32."""
    vector = np.array([numbers], dtype=np.float64)
    largest = float(np.abs(vector).max(initial=0.0))
    if not largest:
        raise Invalid("has no direction: it is empty or all zeros", field="vector")
    scaled: Floats = (vector / largest).astype(np.float32)
    return scaled


def _hit(hit: Hit, body: SearchRequest) -> dict[str, Any]:
    answer: dict[str, Any] = {"id": hit.document.id, "score": round(hit.score, 6)}
    if body.with_text:
        answer["text"] = hit.document.text
    if body.with_metadata:
        answer["metadata"] = hit.document.metadata
    if body.with_vector:
        answer["vector"] = hit.vector
    return answer
