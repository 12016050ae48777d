"""Bytes out: vectors go from NumPy to JSON or base64 without becoming Python numbers."""

from __future__ import annotations

import base64
from typing import Any

import orjson
from fastapi import Response

from serving.api.schemas import Encoding
from serving.embedder import Embeddings
from serving.ports import Floats


def json_response(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`content`, which may hold C-contiguous arrays, as JSON."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type="application/json")


def encoded(vectors: Floats, encoding: Encoding) -> list[Any] | Floats:
    """(N, D) as it is, or N strings of base64 over little-endian float32."""
    if encoding == "float":
        return vectors
    return [base64.b64encode(vector.tobytes()).decode() for vector in vectors.astype("<f4")]


def embedding_headers(embeddings: Embeddings) -> dict[str, str]:
    """What a body of bare vectors can't say."""
    return {
        "x-compute-tokens": str(embeddings.tokens),
        "x-model-fingerprint": embeddings.manifest.fingerprint,
        **truncation_header(embeddings.truncated),
    }


def retry_headers(seconds: int) -> dict[str, str]:
    """When to come back: in seconds as HTTP has it, and in milliseconds as OpenAI's clients prefer it."""
    return {"retry-after": str(seconds), "retry-after-ms": str(1000 * seconds)}


def truncation_header(truncated: int) -> dict[str, str]:
    """How many texts were cut to the model's length: never silently."""
    return {"x-truncated-inputs": str(truncated)}
