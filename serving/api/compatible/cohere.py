"""Route of Cohere's /v2/embed."""

from __future__ import annotations

from uuid import uuid4

from fastapi import APIRouter, Response

from serving.api.routing.answers import embedding_headers, encoded, json_response
from serving.api.routing.deps import ServiceDep
from serving.api.routing.route import DirectRoute
from serving.api.schemas.cohere import CohereEmbeddings, CohereEmbedRequest, meta
from serving.operations.bounds import check_max_tokens

router = APIRouter(tags=["cohere"], route_class=DirectRoute)


@router.post("/v2/embed", response_model=CohereEmbeddings, summary="Embed texts with one or several number types")
async def embed(body: CohereEmbedRequest, service: ServiceDep) -> Response:
    """Embed texts.

    If the server has only one model, `model` may have any value. For the type `base64` in `embedding_types`, vectors
    are little-endian float32. The route refuses images, both in `images` and in `inputs`.
    """
    texts = body.all_texts()
    read = service.encoders.requested(body.model).model.manifest.max_length
    check_max_tokens(body.max_tokens, read, "max_tokens")
    embeddings = await service.embed(texts, body.options(), body.field, model=body.model)
    answer = {
        "id": str(uuid4()),
        "embeddings": {kind: encoded(embeddings, kind) for kind in dict.fromkeys(body.embedding_types)},
        "texts": texts,
        "meta": meta(embeddings, version="2"),
        "response_type": "embeddings_by_type",
    }
    return json_response(answer, headers=embedding_headers(embeddings))
