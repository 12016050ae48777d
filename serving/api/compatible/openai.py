"""OpenAI's routes for embeddings and models, with and without the prefix /v1, and Azure's route for embeddings."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from serving.api.routing.answers import RAW_ANSWER, embedding_headers, encoded, json_response, raw_response, wants_raw
from serving.api.routing.deps import ModelName, ServiceDep
from serving.api.routing.route import DirectRoute, Route
from serving.api.schemas.openai import OpenAIEmbeddings, OpenAIEmbeddingsRequest, OpenAIModel, OpenAIModels

router = APIRouter(tags=["openai"], route_class=Route)
embedding = APIRouter(tags=["openai"], route_class=DirectRoute)
deployments = APIRouter(tags=["openai"], route_class=Route)


@embedding.post(
    "/v1/embeddings", response_model=OpenAIEmbeddings, responses=RAW_ANSWER, summary="Embed texts or token ids"
)
@embedding.post("/embeddings", response_model=OpenAIEmbeddings, include_in_schema=False)
async def embeddings(body: OpenAIEmbeddingsRequest, service: ServiceDep, request: Request) -> Response:
    """Embed texts or token ids.

    If the server has only one model, `model` may have any value. Token ids must come from the model's tokenizer, and
    are embedded unchanged.

    With `Accept: application/octet-stream`, the answer is raw numbers. The header `x-embedding-shape` then has the
    number of vectors and the number of dimensions, such as `32,384`.
    """
    result = await service.embed(body.input, body.options(), "input", model=body.model)
    if wants_raw(request):
        return raw_response(result, body.numbers)
    usage = {"prompt_tokens": result.tokens, "total_tokens": result.tokens, "truncated": result.truncated}
    data = [
        {"object": "embedding", "index": i, "embedding": vector}
        for i, vector in enumerate(encoded(result, body.numbers, packed=body.packed))
    ]
    return json_response(
        {"object": "list", "data": data, "model": result.manifest.name, "usage": usage},
        headers=embedding_headers(result),
    )


@deployments.post(
    "/openai/deployments/{id:any}/embeddings",
    response_model=OpenAIEmbeddings,
    responses=RAW_ANSWER,
    summary="Embed texts or token ids (Azure)",
    openapi_extra={
        "parameters": [
            {
                "name": "api-version",
                "in": "query",
                "description": "Version of Azure's API. Every version gets the same answer.",
                "schema": {"type": "string"},
            }
        ]
    },
)
async def deployment_embeddings(
    id: ModelName, body: OpenAIEmbeddingsRequest, service: ServiceDep, request: Request
) -> Response:
    """Embed texts or token ids for clients of Azure, as `/v1/embeddings` does.

    The deployment in the path is the name of a model in `/v1/models`. Clients of Azure send the API key in the header
    `api-key`.
    """
    return await embeddings(body.model_copy(update={"model": id}), service, request)


@router.get("/v1/models", summary="List models")
@router.get("/models", include_in_schema=False)
async def models(service: ServiceDep) -> OpenAIModels:
    """List the served models. The default model is first."""
    return OpenAIModels(data=[_model(served.name) for served in service.encoders.served])


@router.get("/v1/models/{id:any}", summary="Describe a model")
@router.get("/models/{id:any}", include_in_schema=False)
async def model(id: ModelName) -> OpenAIModel:
    """Describe the model that `/v1/models` lists under this name."""
    return _model(id)


def _model(name: str) -> OpenAIModel:
    return OpenAIModel(id=name, created=0, owned_by="isosphere")
