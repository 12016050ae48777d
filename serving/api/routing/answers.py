"""Response bodies: JSON, base64 or raw bytes, written from NumPy arrays without a conversion to Python numbers."""

from __future__ import annotations

import base64
import math
import re
from typing import Any

import orjson
from fastapi import Request, Response
from numpy.typing import NDArray

from serving.inference.embeddings import Computed, Embeddings, Encoding

JSON = "application/json"
RAW = "application/octet-stream"
RAW_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {RAW: {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            "x-embedding-shape": {
                "description": f"Shape `N,D` of an {RAW} answer: N vectors of D numbers, in row-major order.",
                "schema": {"type": "string"},
            },
            "x-embedding-dtype": {
                "description": f"Number type of an {RAW} answer. The byte order is little-endian.",
                "schema": {"type": "string", "enum": ["float32", "int8", "uint8"]},
            },
        },
    }
}
"""OpenAPI responses of routes that can answer with `raw_response`."""
_WEIGHT = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


def json_response(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response with `content`. The content may include C-contiguous arrays."""
    return Response(written(content), status, headers, media_type=JSON)


def written(content: Any) -> bytes:
    """Return `content` as JSON. The content may include C-contiguous arrays."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def encoded(embeddings: Embeddings, encoding: Encoding, *, packed: bool = False) -> list[str] | NDArray[Any]:
    """Return the N vectors as an array with the number type of `encoding`, in the shape of `Embeddings.numbers`.

    If `packed` is set, or for the encoding `base64`, return N base64 strings instead, one for each vector. A string
    contains the vector's numbers in little-endian order.
    """
    numbers = embeddings.numbers(encoding)
    if packed or encoding == "base64":
        return [base64.b64encode(row).decode() for row in _little_endian(numbers)]
    return numbers


def wants_raw(request: Request) -> bool:
    """Return whether the header `Accept` prefers raw bytes to JSON. Values such as `*/*` mean JSON."""
    accept = request.headers.get("accept", "")
    return RAW in accept.lower() and _quality(accept, RAW) > _quality(accept, JSON)


def _quality(accept: str, media: str) -> float:
    """Return the weight of the type `media` in an `Accept` header (RFC 9110, 12.5.1).

    Return 0 if the header does not name `media`.
    """
    for one in accept.lower().split(","):
        name, *parameters = (part.strip() for part in one.split(";"))
        if name == media:
            weights = [part[2:] for part in parameters if part.startswith("q=")]
            return float(weights[0]) if weights and _WEIGHT.fullmatch(weights[0]) else 1.0
    return 0.0


def raw_response(embeddings: Embeddings, encoding: Encoding) -> Response:
    """Return a response with (N, D) numbers as raw bytes in row order. Headers give the number type and the shape."""
    rows = embeddings.numbers(encoding)
    headers = {
        "x-embedding-shape": "{},{}".format(*rows.shape),
        "x-embedding-dtype": rows.dtype.name,
        **embedding_headers(embeddings),
    }
    return Response(_little_endian(rows).tobytes(), headers=headers, media_type=RAW)


def _little_endian(rows: NDArray[Any]) -> NDArray[Any]:
    return rows.astype(rows.dtype.newbyteorder("<"), copy=False)


def embedding_headers(embeddings: Computed) -> dict[str, str]:
    """Return headers with facts about a request, for answers whose body has no fields for these facts.

    Times are whole milliseconds, as in text-embeddings-inference.
    """
    timing = embeddings.timing
    total = _milliseconds(timing.total)
    headers = {
        "x-compute-type": embeddings.device,
        "x-compute-time": total,
        "x-compute-characters": str(embeddings.characters),
        "x-compute-tokens": str(embeddings.tokens),
        "x-total-time": total,
        "x-tokenization-time": _milliseconds(timing.tokenization),
        "x-queue-time": _milliseconds(timing.queue),
        "x-inference-time": _milliseconds(timing.inference),
        "x-model-fingerprint": embeddings.manifest.fingerprint,
        **truncation_header(embeddings.truncated),
    }
    return headers if embeddings.warning is None else {**headers, "x-embedding-warning": embeddings.warning}


def _milliseconds(seconds: float) -> str:
    return str(round(1000 * seconds))


def retry_headers(seconds: float) -> dict[str, str]:
    """Return headers that tell the client to retry after `seconds`.

    The time is in whole seconds for HTTP clients, and in milliseconds for OpenAI's clients.
    """
    return {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(1000 * seconds))}


def truncation_header(truncated: int) -> dict[str, str]:
    """Return the header with the number of truncated texts."""
    return {"x-truncated-inputs": str(truncated)}
