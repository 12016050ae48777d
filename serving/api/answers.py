"""Bytes out: vectors go from NumPy to JSON, base64 or raw bytes without becoming Python numbers."""

from __future__ import annotations

import base64
import re
from typing import Any

import orjson
from fastapi import Request, Response

from serving.api.schemas import Encoding
from serving.embedder import Embeddings
from serving.ports import Floats

JSON = "application/json"
RAW = "application/octet-stream"
RAW_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {RAW: {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            "x-embedding-shape": {
                "description": f"of {RAW}: `N,D`, vectors and their width; the body is N × D little-endian float32",
                "schema": {"type": "string"},
            }
        },
    }
}
"""How routes that can answer with `raw_response` say so."""
_WEIGHT = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


def json_response(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`content`, which may hold C-contiguous arrays, as JSON."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type=JSON)


def encoded(vectors: Floats, encoding: Encoding) -> list[Any] | Floats:
    """(N, D) as it is, or N strings of base64 over little-endian float32."""
    if encoding == "float":
        return vectors
    return [base64.b64encode(vector).decode() for vector in vectors.astype("<f4", copy=False)]


def wants_raw(request: Request) -> bool:
    """Whether `Accept` names raw bytes and prefers them to JSON: any other value, `*/*` included, means JSON."""
    accept = request.headers.get("accept", "")
    return RAW in accept.lower() and _quality(accept, RAW) > _quality(accept, JSON)


def _quality(accept: str, media: str) -> float:
    """RFC 9110, 12.5.1: the weight of `media` where it is named, 1 where none is given; 0 where it is not named."""
    for one in accept.lower().split(","):
        name, *parameters = (part.strip() for part in one.split(";"))
        if name == media:
            weights = [part[2:] for part in parameters if part.startswith("q=")]
            return float(weights[0]) if weights and _WEIGHT.fullmatch(weights[0]) else 1.0
    return 0.0


def raw_response(embeddings: Embeddings) -> Response:
    """(N, D) as little-endian float32, row after row, the shape in a header."""
    vectors = embeddings.vectors
    headers = {"x-embedding-shape": "{},{}".format(*vectors.shape), **embedding_headers(embeddings)}
    return Response(vectors.astype("<f4", copy=False).tobytes(), headers=headers, media_type=RAW)


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
