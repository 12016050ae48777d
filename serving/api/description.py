"""The OpenAPI document: FastAPI's document plus the parameters, headers and errors that all routes share."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from serving.api.middleware.edge import REQUEST_ID
from serving.api.routing.errors import Family, family_of
from serving.api.routing.route import LONGEST_TIMEOUT, TIMEOUT
from serving.api.schemas.bodies import ErrorAnswer
from serving.api.schemas.cohere import CohereError
from serving.api.schemas.ollama import OllamaError
from serving.api.schemas.openai import OpenAIError
from serving.operations.context import PRIORITY

TEXT = """Sentence embeddings, similarity and semantic search over uploaded corpora.

For optional fields, `null` means absent. Enum values are case-insensitive.

Routes under `/search`, `/corpora`, `/aliases`, `/jobs` and `/admin` refuse unknown fields and query parameters. Other
routes ignore unknown fields and parameters, because clients of other servers send some.

Every response has `x-request-id`. Errors are JSON: `{"error", "error_type"}`, OpenAI's `{"error": {...}}` under `/v1`
and `/openai`, Cohere's `{"message"}` under `/v2`, and Ollama's `{"error"}` under `/api`."""

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request is malformed or empty."},
    401: {"description": "The API key is missing or unknown."},
    403: {"description": "The caller has no permission for this request."},
    404: {"description": "The corpus, document, model or other resource does not exist."},
    408: {"description": "The body arrived too slowly."},
    409: {
        "description": "The request conflicts with the current state. For example, another bundle embedded the "
        "corpus, or the same work is already running."
    },
    413: {"description": "The request or its answer is too large."},
    415: {"description": "The content type is not supported."},
    422: {"description": "A field has a wrong type or value. The message names the field."},
    424: {"description": "The engine failed."},
    429: {"description": "The queue is full, or the key has reached a limit."},
    501: {
        "description": "This store or this installation does not support the operation. The message says what to "
        "use instead."
    },
    503: {"description": "The server is loading, failing, draining or failed."},
    504: {"description": "The server did not answer within `x-timeout-ms`."},
    507: {"description": "The disk is full, or the key's corpora have reached their disk limit."},
}
"""Descriptions of error responses by status."""
_BODIES: dict[Family, type[BaseModel]] = {
    Family.NATIVE: ErrorAnswer,
    Family.OPENAI: OpenAIError,
    Family.COHERE: CohereError,
    Family.OLLAMA: OllamaError,
}
_PARAMETERS: dict[str, dict[str, Any]] = {
    TIMEOUT: {
        "description": "Time limit for the whole answer, in milliseconds.",
        "schema": {"type": "integer", "minimum": 1, "maximum": LONGEST_TIMEOUT},
    },
    PRIORITY: {
        "description": "Priority of the request. `bulk` requests may wait for `interactive` requests.",
        "schema": {"type": "string", "enum": ["interactive", "bulk"], "default": "interactive"},
    },
}
_HEADERS: dict[str, dict[str, Any]] = {
    REQUEST_ID: {
        "description": "Id of the request: the caller's own `x-request-id`, or a new id.",
        "required": True,
        "schema": {"type": "string"},
    },
    "retry-after": {
        "description": (
            "Seconds to wait before the next attempt. Absent if waiting does not help, as with a full disk or "
            "damaged data."
        ),
        "schema": {"type": "integer", "minimum": 0},
    },
    "www-authenticate": {"required": True, "schema": {"type": "string", "enum": ["Bearer"]}},
}
_HEADERS_OF: dict[int | str, list[str]] = {401: ["www-authenticate"], 429: ["retry-after"], 503: ["retry-after"]}


def describe(app: FastAPI) -> None:
    """Replace `app.openapi()` by a function that completes FastAPI's document and caches the result."""
    of_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        return app.openapi_schema or _complete(of_fastapi())

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _complete(document: dict[str, Any]) -> dict[str, Any]:
    """Add errors, parameters and headers to every operation of `document` in place. Return `document`."""
    components = document["components"]
    _, bodies = models_json_schema(
        [(body, "serialization") for body in _BODIES.values()], ref_template=_reference("schemas", "{model}")["$ref"]
    )
    components["schemas"] = dict(sorted((components["schemas"] | bodies["$defs"]).items()))
    components["headers"] = _HEADERS
    components["parameters"] = {name: {"name": name, "in": "header", **one} for name, one in _PARAMETERS.items()}
    components["responses"] = {_name(family, status): _error(family, status) for family in Family for status in ERRORS}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation.setdefault("parameters", []).extend(_reference("parameters", name) for name in _PARAMETERS)
            results = {status: one for status, one in operation["responses"].items() if int(status) not in ERRORS}
            for result in results.values():
                result["headers"] = result.get("headers", {}) | _headers([REQUEST_ID])
            operation["responses"] = results | {
                str(status): _reference("responses", _name(family_of(path), status))
                for status in ERRORS
                if _may_answer(status, method, path)
            }
    return document


def _may_answer(status: int | str, method: str, path: str) -> bool:
    """Return whether the route of `method` and `path` may answer with the error `status`.

    The errors 404, 409, 424, 501 and 507 are possible only on some routes. Every other error is possible on every
    route, for example an error about the body, the API key or the deadline.
    """
    match status:
        case 404:
            # Only paths with a name, POST requests and /info can name a model or a corpus.
            return "{" in path or method == "post" or path == "/info"
        case 409:
            return path.startswith(("/corpora", "/aliases", "/search", "/admin/"))
        case 424:
            return method == "post"
        case 501:
            return path.endswith(("/adapt", "/map", "/snapshots", "/restore")) and method != "get"
        case 507:
            written = path.startswith(("/corpora/", "/aliases/", "/jobs/")) and not path.endswith("/search")
            return method != "get" and written
    return True


def _error(family: Family, status: int | str) -> dict[str, Any]:
    schema = _reference("schemas", _BODIES[family].__name__)
    headers = _headers([REQUEST_ID, *_HEADERS_OF.get(status, [])])
    return ERRORS[status] | {"content": {"application/json": {"schema": schema}}, "headers": headers}


def _name(family: Family, status: int | str) -> str:
    return f"{family.name.lower()}-{status}"


def _headers(names: list[str]) -> dict[str, Any]:
    return {name: _reference("headers", name) for name in names}


def _reference(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}
