"""Routes for embedding, similarity, tokenizing and reranking, in the format of text-embeddings-inference.

The route `/` embeds or compares texts, depending on the type of `inputs` in the body.
"""

from __future__ import annotations

from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.api.middleware.unread_answers import largest_answer
from serving.api.routing.answers import RAW_ANSWER, embedding_headers, encoded, json_response, raw_response, wants_raw
from serving.api.routing.deps import ModelName, ServiceDep
from serving.api.routing.route import DirectRoute, Route
from serving.api.schemas.bodies import (
    DecodeRequest,
    EmbedAllRequest,
    EmbedRequest,
    InferenceRequest,
    Prediction,
    PredictRequest,
    Rank,
    RerankRequest,
    SentencePairs,
    SimilarityRequest,
    Token,
    TokenizeRequest,
    Vectors,
)
from serving.api.schemas.cohere import CohereRanking, CohereRerankRequest, meta
from serving.inference.embeddings import EmbedOptions
from serving.inference.relevance import DECIMALS, MOST_COMPONENTS, squashed
from serving.operations.bounds import check_some

COMPONENT_BYTES = 13
"""Estimated bytes of one component of a vector in JSON. /embed_all refuses requests whose answer would be too large."""

router = APIRouter(tags=["inference"], route_class=DirectRoute)
reranking = APIRouter(tags=["rerank"], route_class=DirectRoute)
"""Routes for reranking in the formats of text-embeddings-inference, Cohere and Jina."""
pipelines = APIRouter(prefix="/models/{id:any}/pipeline", tags=["inference"], route_class=Route)


@router.post("/embed", response_model=Vectors, responses=RAW_ANSWER, summary="Embed texts")
async def embed(body: EmbedRequest, service: ServiceDep, request: Request) -> Response:
    """Return a vector for each text.

    The answer is a list of vectors, even for a single text. Token ids must come from the model's tokenizer.

    With `Accept: application/octet-stream`, the answer is raw numbers. The header `x-embedding-shape` then has the
    number of vectors and the number of dimensions, such as `32,384`.
    """
    embeddings = await service.embed(body.inputs, body.options(), model=body.model)
    if wants_raw(request):
        return raw_response(embeddings, body.encoding_format)
    return json_response(encoded(embeddings, body.encoding_format), headers=embedding_headers(embeddings))


@router.post("/embed_all", response_model=list[list[list[float]]], summary="Embed each token")
async def embed_all(body: EmbedAllRequest, service: ServiceDep) -> Response:
    """Return the vectors of the tokens of each text.

    The vectors are the encoder's last layer, not normalised. They include the vectors of special tokens.
    """
    most = min(MOST_COMPONENTS, largest_answer(service.settings) // COMPONENT_BYTES)
    with service.encoder(body.model) as encoder:
        found = await encoder.embed_tokens(body.inputs, body.options(), most=most)
    return json_response(found.by_text, headers=embedding_headers(found))


@router.post("/similarity", response_model=list[float] | list[list[float]], summary="Compare texts")
async def similarity(body: SimilarityRequest, service: ServiceDep) -> Response:
    """Return the cosine similarities of one text with many texts, or the similarity matrix of two lists of texts."""
    inputs = body.inputs
    if isinstance(inputs, SentencePairs):
        a, b, field, beside = inputs.sentences_a, inputs.sentences_b, "inputs.sentences_b", 0
        check_some(a, "inputs.sentences_a")
        names = [f"inputs.sentences_a.{i}" for i in range(len(a))]
    else:
        a, b, field, beside = [inputs.source_sentence], inputs.sentences, "inputs.sentences", 1
        names = ["inputs.source_sentence"]
    check_some(b, field)
    names += [f"{field}.{i}" for i in range(len(b))]
    options = body.parameters.options()
    with service.encoder(body.model) as encoder:
        embeddings = await encoder.embed([*a, *b], options, at=names.__getitem__, beside=beside)
    left, right = embeddings.vectors[: len(a)], embeddings.vectors[len(a) :]
    cosines = np.clip(left @ right.T, -1, 1)
    answer = cosines if isinstance(inputs, SentencePairs) else cosines[0]
    return json_response(answer, headers=embedding_headers(embeddings))


@router.post(
    "/invocations",
    response_model=Vectors | list[float],
    responses=RAW_ANSWER,
    summary="Embed or compare texts (SageMaker)",
)
@router.post("/", response_model=Vectors | list[float], responses=RAW_ANSWER, summary="Embed or compare texts")
async def infer(body: InferenceRequest, service: ServiceDep, request: Request) -> Response:
    """Answer as /similarity if `inputs` is an object, else as /embed.

    Clients of Hugging Face send requests of both kinds to `/`.
    """
    if isinstance(body.root, SimilarityRequest):
        return await similarity(body.root, service)
    return await embed(body.root, service, request)


@router.post("/tokenize", response_model=list[list[Token]], summary="Tokenize texts")
async def tokenize(body: TokenizeRequest, service: ServiceDep) -> Response:
    """Return all tokens of each text.

    The tokens include those that /embed would truncate. If a prompt is given, it is put before each text. `start` and
    `stop` are positions of characters in the text including the prompt.
    """
    options = EmbedOptions(prompt=body.prompt, prompt_name=body.prompt_name)
    with service.encoder(body.model) as encoder:
        pieces = await encoder.pieces(body.inputs, special_tokens=body.add_special_tokens, options=options)
    return json_response(pieces)


@router.post("/decode", response_model=list[str], summary="Decode token ids")
async def decode(body: DecodeRequest, service: ServiceDep) -> Response:
    """Return a text for each list of token ids."""
    with service.encoder(body.model) as encoder:
        return json_response(await encoder.decoded(body.ids, skip_special_tokens=body.skip_special_tokens))


@pipelines.post(
    "/feature-extraction", response_model=Vectors, responses=RAW_ANSWER, summary="Embed texts (Hugging Face pipeline)"
)
async def feature_extraction(id: ModelName, body: EmbedRequest, service: ServiceDep, request: Request) -> Response:
    """Embed texts for clients of Hugging Face, which name the model in the path."""
    return await embed(body.model_copy(update={"model": id}), service, request)


@pipelines.post(
    "/sentence-similarity",
    response_model=list[float] | list[list[float]],
    summary="Compare texts (Hugging Face pipeline)",
)
async def sentence_similarity(id: ModelName, body: SimilarityRequest, service: ServiceDep) -> Response:
    """Compare texts for clients of Hugging Face, which name the model in the path."""
    return await similarity(body.model_copy(update={"model": id}), service)


@reranking.post("/rerank", response_model=list[Rank], summary="Rank texts by relevance")
async def rerank(body: RerankRequest, service: ServiceDep) -> Response:
    """Rank texts by their relevance to a query, best first.

    By default, the query gets the encoder's prompt for queries, and each text gets the encoder's prompt for documents.
    The request can give one prompt that replaces both. A cross-encoder reads each text together with the query, and
    does not support prompts.
    """
    found = await service.relevance(
        body.query, body.texts, body.options(), "texts", method=body.method, model=body.model
    )
    scores = _decimal(
        found.bounded if body.raw_scores is None else found.scores if body.raw_scores else squashed(found.scores)
    )
    ranks = [
        {"index": i, "score": scores[i]} | ({"text": body.texts[i]} if body.return_text else {})
        for i in _best_first(found.scores)
    ]
    return json_response(ranks, headers=embedding_headers(found.computed))


@reranking.post("/v1/rerank", response_model=CohereRanking, summary="Rank documents by relevance (Cohere v1, Jina)")
@reranking.post("/v2/rerank", response_model=CohereRanking, summary="Rank documents by relevance (Cohere v2)")
async def cohere_rerank(body: CohereRerankRequest, service: ServiceDep, request: Request) -> Response:
    """Return the best `top_n` documents, best first.

    `relevance_score` is a cosine similarity, or the sigmoid of a cross-encoder's score. If the server has only one
    model, `model` may have any value.
    """
    found = await service.relevance(
        body.query, body.documents, body.options(), "documents", model=body.model, max_tokens=body.max_tokens_per_doc
    )
    scores, embeddings = _decimal(found.bounded), found.computed
    results = [
        {"index": i, "relevance_score": scores[i]}
        | ({"document": {"text": body.documents[i]}} if body.return_documents else {})
        for i in _best_first(found.scores)[: body.most]
    ]
    answer = {
        "id": str(uuid4()),
        "model": embeddings.manifest.name,
        "results": results,
        "meta": meta(embeddings, version=request.url.path[2]),
        "usage": {"prompt_tokens": embeddings.tokens, "total_tokens": embeddings.tokens},
    }
    return json_response(answer, headers=embedding_headers(embeddings))


@reranking.post("/predict", response_model=list[Prediction] | list[list[Prediction]], summary="Score pairs of texts")
async def predict(body: PredictRequest, service: ServiceDep) -> Response:
    """Score pairs of texts by a cross-encoder, which reads both texts of a pair together.

    A score is the sigmoid of the model's output. With `raw_scores`, a score is the output itself.
    """
    options = EmbedOptions(truncate=body.truncate, direction=body.truncation_direction)
    served = service.encoders.cross_encoder(body.model)
    with service.admitted(), served.ready_embedder.held() as encoder:
        scores, computed = await encoder.score(body.pairs, options)
    found = _decimal(scores if body.raw_scores else squashed(scores))
    predictions = [[{"score": score, "label": encoder.model.label}] for score in found]
    return json_response(predictions[0] if body.single else predictions, headers=embedding_headers(computed))


def _decimal(scores: NDArray[np.floating]) -> list[float]:
    """Convert the scores to Python floats, and then round them to `relevance.DECIMALS`.

    If float32 scores were rounded first, the conversion would add digits.
    """
    return [round(score, DECIMALS) for score in scores.tolist()]


def _best_first(scores: Floats) -> list[int]:
    """Return the indices of the scores, highest score first. Equal scores keep their order in the request."""
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order
