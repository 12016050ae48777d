"""Error responses. Each route belongs to an API that determines the format of its errors.

Native routes use the format of text-embeddings-inference. Routes under /v1, /openai, /models and /embeddings use
OpenAI's format. Routes under /v2 use Cohere's format, and routes under /api use Ollama's format. Routes
under /models/{id}/pipeline and /models/{id}/report are native.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from serving.api.routing.answers import json_response, retry_headers
from serving.api.schemas.bodies import UNION_TAGS
from serving.errors import MAX_FIELD, Invalid, ServiceError, shortened
from serving.operations.json_body import FITS

log = logging.getLogger(__name__)

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_OPENAI_PATH = re.compile("/(v1|openai)/|/(embeddings|models)(?=/|$)(?!/.+/(pipeline/|report$))")
_SAID = {
    **dict.fromkeys(("model_type", "model_attributes_type"), "must be a JSON object"),
    "missing": "is required",
    "int_parsing": "must be an integer",
    "bool_parsing": "must be true or false",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "none_required": "is not supported",
}
"""Messages for some of pydantic's error types. They replace pydantic's own messages, which name Python types or our
classes."""
_SHOULD = re.compile("^(Dictionary|Input|List|String|Value) should ")
_HEADERS = {401: {"www-authenticate": "Bearer"}, 408: {"connection": "close"}}
_KINDS = {404: "NotFound", 405: "Validation"}
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    **dict.fromkeys((424, 500, 503, 504, 507), "server_error"),
}
"""OpenAI's types of errors by status. Other errors are `invalid_request_error`."""
Answering = Callable[[Request, Exception], Response]


class Family(Enum):
    """One of the APIs that the server offers. The routes of an API answer errors in the format of this API."""

    NATIVE = "text-embeddings-inference"
    OPENAI = "OpenAI"
    COHERE = "Cohere"
    OLLAMA = "Ollama"


def family_of(path: str) -> Family:
    """Return the API to which the route at `path` belongs."""
    if path.startswith("/v2/"):
        return Family.COHERE
    if path.startswith("/api/"):
        return Family.OLLAMA
    if _OPENAI_PATH.match(path):
        return Family.OPENAI
    return Family.NATIVE


def install(app: FastAPI) -> None:
    """Install handlers for service errors, validation errors and HTTP errors.

    An answer has the error format of the API that the route belongs to, such as OpenAI's.
    """
    for kind, answer in (
        (ServiceError, service_error),
        (RequestValidationError, _validation_error),
        (HTTPException, http_error),
    ):
        app.add_exception_handler(kind, _on_the_loop(answer))


def _on_the_loop(answer: Answering) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Wrap an exception handler so that it runs on the event loop.

    Otherwise, Starlette would run the handler in a thread. That fails if the process has no free file descriptors.
    """

    async def handle(request: Request, error: Exception) -> Response:
        return answer(request, error)

    return handle


def invalid(errors: Sequence[Mapping[str, Any]]) -> Invalid:
    """Convert the first of pydantic's errors to `Invalid`, whose `field` is the path of the field in the request."""
    first = errors[0]
    location = [str(step) for step in first["loc"] if step not in UNION_TAGS]
    message = _SAID.get(first["type"], _SHOULD.sub("must ", str(first["msg"]).removeprefix("Value error, ")))
    message = message.replace(" after validation, not", ", not")
    if first["type"] == "int_type" and isinstance(first["input"], float) and first["input"].is_integer():
        message = f"must be an integer {FITS}, without a fraction"  # larger integers in JSON become floats
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Invalid(message + more, field=".".join(location) or "body")


def service_error(request: Request, error: Exception) -> Response:
    """Return the response to a `ServiceError`, in the error format of the path's API."""
    assert isinstance(error, ServiceError)
    headers = dict(_HEADERS.get(error.status, {}))
    if error.retry_after is not None:
        headers |= retry_headers(error.retry_after)
    return _answer(request, error.status, error.kind, error.message, field=error.field, headers=headers)


def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # The first element of the location is "body", "query" or "path".
    inside = [{**one, "loc": one["loc"][1:]} for one in error.errors()]
    return service_error(request, invalid(inside))


def http_error(request: Request, error: Exception) -> Response:
    """Return the response to an error of the framework, in the error format of the path's API."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers = {"allow": allowed(request, told=headers.get("Allow", ""))}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
    message = f"{request.method} {shortened(request.url.path, MAX_FIELD)}: {error.detail}"
    return _answer(request, error.status_code, _KINDS.get(error.status_code, "Backend"), message, headers=headers)


def internal_error(request: Request, error: Exception, id: str) -> Response:
    """Log an unexpected exception.

    Return a response with the request's `id`, by which the exception can be found in the log.
    """
    log.error("request %s failed", id, exc_info=error)
    message = f"internal error; the server's log has details under the request id {id}"
    return _answer(request, 500, "Backend", message, headers={})


def allowed(request: Request, told: str) -> str:
    """Return the methods that the request's path allows, for the header `Allow`.

    `told` is the framework's list of methods. For a path with several routes, the list has only the methods of the
    first route. For files of /docs, which are not routes, `told` is the only source.
    """
    routes = request.app.router.routes
    taken = [
        method
        for method in METHODS
        if method in told.split(", ")
        or any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return ", ".join([*taken, *(["HEAD"] if "GET" in taken else []), "OPTIONS"])


def _answer(
    request: Request, status: int, kind: str, message: str, *, field: str | None = None, headers: dict[str, str]
) -> Response:
    content: dict[str, Any] = {"error": message, "error_type": kind}
    match family_of(request.url.path):
        case Family.COHERE:
            content = {"message": message}
        case Family.OLLAMA:
            content = {"error": message}
        case Family.OPENAI:
            code = "model_not_found" if status == 404 and field == "model" else kind.lower()
            type_ = _OPENAI_TYPES.get(status, "invalid_request_error")
            content = {"error": {"message": message, "type": type_, "param": field, "code": code}}
    return json_response(content, status=status, headers=headers)
