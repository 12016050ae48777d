"""OpenAI's routes: embeddings and models, with and without /v1."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from serving.api.answers import RAW_ANSWER, embedding_headers, encoded, json_response, raw_response, wants_raw
from serving.api.deps import ModelName, ServiceDep
from serving.api.route import DirectRoute, Route
from serving.api.schemas import OpenAIEmbeddings, OpenAIEmbeddingsRequest, OpenAIError, OpenAIModel, OpenAIModels
from serving.service import Service

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": OpenAIError} for status in (400, 404, 413, 415, 422, 424, 429, 503)
}
router = APIRouter(tags=["openai"], route_class=Route, responses=_ERRORS)
embedding = APIRouter(tags=["openai"], route_class=DirectRoute, responses=_ERRORS)


@embedding.post(
    "/v1/embeddings", response_model=OpenAIEmbeddings, responses=RAW_ANSWER, summary="Embed texts or token ids"
)
@embedding.post("/embeddings", response_model=OpenAIEmbeddings, include_in_schema=False)
async def embeddings(body: OpenAIEmbeddingsRequest, service: ServiceDep, request: Request) -> Response:
    """Any `model` is answered by the one that is served. Token ids must be the model's own; they are embedded as is.

    `Accept: application/octet-stream` gets the numbers alone, `N,D` in `x-embedding-shape`.
    """
    result = await service.embed(body.input, body.options(), "input")
    if wants_raw(request):
        return raw_response(result, body.encoding_format)
    usage = {"prompt_tokens": result.tokens, "total_tokens": result.tokens, "truncated": result.truncated}
    data = [
        {"object": "embedding", "index": i, "embedding": vector}
        for i, vector in enumerate(encoded(result, body.encoding_format))
    ]
    return json_response(
        {"object": "list", "data": data, "model": result.manifest.name, "usage": usage},
        headers=embedding_headers(result),
    )


@router.get("/v1/models", summary="List the models")
@router.get("/models", include_in_schema=False)
async def models(service: ServiceDep) -> OpenAIModels:
    """The one that is served."""
    return OpenAIModels(data=[_model(service)])


@router.get("/v1/models/{id:path}", summary="Describe a model")
@router.get("/models/{id:path}", include_in_schema=False)
async def model(id: ModelName, service: ServiceDep) -> OpenAIModel:  # noqa: ARG001 - checked
    """By the name that the list gives."""
    return _model(service)


def _model(service: Service) -> OpenAIModel:
    return OpenAIModel(id=service.manifest.name, created=0, owned_by="isosphere")
