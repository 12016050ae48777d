"""Routes /tokenize and /decode of text-embeddings-inference."""

from __future__ import annotations

from fastapi import Response

from serving.api.answers import json_response
from serving.api.deps import ServiceDep
from serving.api.inference import router
from serving.api.schemas import DecodeRequest, Token, TokenizeRequest
from serving.embeddings import EmbedOptions


@router.post("/tokenize", response_model=list[list[Token]], summary="Tokenize texts")
async def tokenize(body: TokenizeRequest, service: ServiceDep) -> Response:
    """List all tokens, including those that /embed would cut.

    `start` and `stop` count characters, including those of the prompt.
    """
    options = EmbedOptions(prompt=body.prompt, prompt_name=body.prompt_name)
    with service.encoder(body.model) as encoder:
        pieces = await encoder.pieces(body.inputs, special_tokens=body.add_special_tokens, options=options)
    return json_response(pieces)


@router.post("/decode", response_model=list[str], summary="Decode token ids")
async def decode(body: DecodeRequest, service: ServiceDep) -> Response:
    """Return a text for each list of ids."""
    with service.encoder(body.model) as encoder:
        return json_response(await encoder.decoded(body.ids, skip_special_tokens=body.skip_special_tokens))
