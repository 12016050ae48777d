"""Reranking: texts in order of relevance to a query, in the formats of text-embeddings-inference, Cohere and Jina.

This server runs encoders. The score is the cosine of query and text, each embedded alone; a cross-encoder would read
both together.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.api.routing.answers import embedding_headers, json_response
from serving.api.routing.deps import ServiceDep
from serving.api.routing.route import DirectRoute
from serving.api.schemas.bodies import Rank, RerankRequest
from serving.api.schemas.cohere import CohereRanking, CohereRerankRequest, meta
from serving.corpora.indexes.exact import DECIMALS

router = APIRouter(tags=["rerank"], route_class=DirectRoute)


@router.post("/rerank", response_model=list[Rank], summary="Order texts by relevance")
async def rerank(body: RerankRequest, service: ServiceDep) -> Response:
    """Order texts, best first.

    Query and texts get the bundle's prompts for their roles, unless the request names another prompt.
    """
    cosines, embeddings = await service.relevance(body.query, body.texts, body.options(), "texts", model=body.model)
    scores = _decimal(cosines if body.raw_scores else 1 / (1 + np.exp(-cosines)))
    ranks: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in _best_first(cosines)]
    if body.return_text:
        for rank in ranks:
            rank["text"] = body.texts[rank["index"]]
    return json_response(ranks, headers=embedding_headers(embeddings))


@router.post(
    "/v1/rerank",
    response_model=CohereRanking,
    summary="Order documents by relevance (Cohere v1, Jina)",
)
@router.post(
    "/v2/rerank",
    response_model=CohereRanking,
    summary="Order documents by relevance (Cohere v2)",
)
async def cohere_rerank(body: CohereRerankRequest, service: ServiceDep, request: Request) -> Response:
    """Return the best `top_n` documents, best first.

    `relevance_score` is a cosine. If only one model is served, `model` may have any value.
    """
    cosines, embeddings = await service.relevance(
        body.query,
        body.documents,
        body.options(),
        "documents",
        model=body.model,
        max_tokens=body.max_tokens_per_doc,
    )
    scores = _decimal(cosines)
    results: list[dict[str, Any]] = [
        {"index": i, "relevance_score": scores[i]} for i in _best_first(cosines)[: body.most]
    ]
    if body.return_documents:
        for result in results:
            result["document"] = {"text": body.documents[result["index"]]}
    answer = {
        "id": str(uuid4()),
        "model": embeddings.manifest.name,
        "results": results,
        "meta": meta(embeddings, version=request.url.path[2]),
        "usage": {"prompt_tokens": embeddings.tokens, "total_tokens": embeddings.tokens},
    }
    return json_response(answer, headers=embedding_headers(embeddings))


def _decimal(scores: NDArray[np.floating]) -> list[float]:
    """Round scores to the decimals that ranking compares. float32 has no exact decimals."""
    return [round(score, DECIMALS) for score in scores.tolist()]


def _best_first(scores: Floats) -> list[int]:
    """Return indices by descending score. Equal scores keep the order of the request."""
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order
