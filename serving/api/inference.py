"""text-embeddings-inference's routes: /embed, /similarity, and / by the shape of its body."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from serving.api.answers import RAW_ANSWER, embedding_headers, encoded, json_response, raw_response, wants_raw
from serving.api.deps import ServiceDep
from serving.api.route import DirectRoute, parsed
from serving.api.schemas import EmbedRequest, InferenceRequest, SentencePairs, SimilarityRequest
from serving.errors import Empty

router = APIRouter(tags=["inference"], route_class=DirectRoute)


@router.post("/embed", response_model=list[list[float]], responses=RAW_ANSWER, summary="Embed texts")
async def embed(body: EmbedRequest, service: ServiceDep, request: Request) -> Response:
    """A vector for each text: always a list of lists, also for one text.

    `Accept: application/octet-stream` gets the numbers alone: little-endian float32, `N,D` in `x-embedding-shape`.
    """
    embeddings = await service.embed(body.inputs, body.options())
    if wants_raw(request):
        return raw_response(embeddings)
    return json_response(encoded(embeddings.vectors, body.encoding_format), headers=embedding_headers(embeddings))


@router.post("/similarity", response_model=list[float] | list[list[float]], summary="Compare texts")
async def similarity(body: SimilarityRequest, service: ServiceDep) -> Response:
    """Cosines of one text with many, or a matrix of many with many."""
    inputs = body.inputs
    if isinstance(inputs, SentencePairs):
        _require(inputs.sentences_a, "inputs.sentences_a")
        _require(inputs.sentences_b, "inputs.sentences_b")
        cosines, embeddings = await service.similarity(
            inputs.sentences_a, inputs.sentences_b, body.parameters.options()
        )
        return json_response(cosines, headers=embedding_headers(embeddings))
    _require(inputs.sentences, "inputs.sentences")
    cosines, embeddings = await service.similarity(
        [inputs.source_sentence], inputs.sentences, body.parameters.options()
    )
    return json_response(cosines[0], headers=embedding_headers(embeddings))


@router.post(
    "/", response_model=list[list[float]] | list[float], responses=RAW_ANSWER, summary="Embed or compare, by shape"
)
async def infer(body: InferenceRequest, service: ServiceDep, request: Request) -> Response:
    """As /similarity where `inputs` is an object, else as /embed: what Hugging Face's clients send to a URL."""
    if isinstance(body.inputs, dict):
        return await similarity(parsed(SimilarityRequest, await request.json()), service)
    return await embed(parsed(EmbedRequest, await request.json()), service, request)


def _require(texts: list[str], field: str) -> None:
    if not texts:
        raise Empty("must hold at least one text", field=field)
