"""Cohere's /v2/embed."""

from __future__ import annotations

from uuid import uuid4

from fastapi import APIRouter, Response

from serving.api.answers import embedding_headers, encoded, json_response
from serving.api.cohere_schemas import CohereEmbeddings, CohereEmbedRequest, meta
from serving.api.deps import ServiceDep
from serving.api.route import DirectRoute

router = APIRouter(tags=["cohere"], route_class=DirectRoute)


@router.post("/v2/embed", response_model=CohereEmbeddings, summary="Embed texts, in several types at once")
async def embed(body: CohereEmbedRequest, service: ServiceDep) -> Response:
    """Where one model is served it answers whatever `model` says. base64 is of little-endian float32."""
    embeddings = await service.embed(body.texts, body.options(), "texts", model=body.model)
    answer = {
        "id": str(uuid4()),
        "embeddings": {kind: encoded(embeddings, kind) for kind in dict.fromkeys(body.embedding_types)},
        "texts": body.texts,
        "meta": meta(embeddings, version="2"),
        "response_type": "embeddings_by_type",
    }
    return json_response(answer, headers=embedding_headers(embeddings))
