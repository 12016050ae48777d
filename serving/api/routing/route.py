"""Route classes. A route cancels its work if the caller disconnects or the deadline passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from email.message import Message as MimeHeaders
from functools import lru_cache
from typing import Any, TypeVar

import starlette.requests
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.routing.deps import CLOSED
from serving.api.routing.errors import http_error, invalid, service_error
from serving.api.routing.request_body import BoundedRequest
from serving.corpora.filters import is_number
from serving.errors import Expired, Invalid, Malformed, ServiceError, UnsupportedMedia
from serving.operations.bounds import check_count
from serving.operations.context import BULK, PRIORITY, holding, parse_priority
from serving.settings import Settings

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Work = Callable[[BoundedRequest], Coroutine[Any, Any, Response]]
Model = TypeVar("Model", bound=BaseModel)

TIMEOUT = "x-timeout-ms"
LONGEST_TIMEOUT = 999_999_999
WATCHED_AFTER = 0.05
"""Seconds after which the server starts to watch whether the caller of a request has disconnected. Most answers are
sent earlier. Watching every request would take a tenth of the server's time outside the model."""
LONGEST_TYPE = 1000
"""Maximum characters of a content type. Longer content types are refused, because parsing takes quadratic time."""
CLIENT_LEFT = 499
"""nginx's status for a client that disconnected. It appears only in logs and metrics."""
NOTHING = (b"", b"{}", b"[]", b"null")
"""Bodies without a field."""
_TEXTS, _TEXTS_OR_IDS = ("queries", "texts"), ("inputs", "input", "ids")
_SIDES = ("sentences", "sentences_a", "sentences_b")


class AnyConvertor(PathConvertor):
    """Path parameter `{id:any}`, which matches the rest of a path, including line breaks.

    Starlette's `:path` stops at a line break, and drops a line break at the end.
    """

    regex = "(?s:.*)"


register_url_convertor("any", AnyConvertor())


def media_type(request: Request) -> str:
    """Return the media type of a request, without parameters. The default is JSON."""
    given = request.headers.get("content-type", "")
    _parsed_type(given)
    # `MimeHeaders` would report text/plain for a content type that it can't parse.
    return given.partition(";")[0].strip().lower() or "application/json"


def charset(request: Request) -> str | None:
    """Return the charset of the content type in lower case, or None if the content type names no charset."""
    return _parsed_type(request.headers.get("content-type", "")).get_content_charset()


@lru_cache(maxsize=64)
def _parsed_type(content_type: str) -> MimeHeaders:
    if len(content_type) > LONGEST_TYPE:
        raise UnsupportedMedia(f"is longer than {LONGEST_TYPE} characters", field="content-type")
    message = MimeHeaders()
    message["content-type"] = content_type
    return message


def is_json(media: str) -> bool:
    """Return whether `media` is `application/json` or `application/*+json`."""
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


class Route(APIRoute):
    """Route that reads the whole body before its work begins.

    The work is cancelled if the caller disconnects or the deadline passes.
    """

    def get_route_handler(self) -> Handler:
        closed = CLOSED[0] in self.dependencies
        return _bounded(super().get_route_handler(), self.body_field, typed=True, closed=closed)


class StreamedRoute(APIRoute):
    """Route whose endpoint reads a long body itself.

    After that, the endpoint works within `while_connected`, which cancels the work if the caller disconnects.
    """

    def get_route_handler(self) -> Handler:
        return _in_time(super().get_route_handler())


class DirectRoute(Route):
    """Fast `Route` whose endpoint takes `body`, `service` and optionally `request`, and returns a `Response`.

    FastAPI documents the route like any other. Its requests skip FastAPI's dependencies and exit stacks, because these
    take several times as long as all other work on a request, except the model's.
    """

    def get_route_handler(self) -> Handler:
        endpoint, field = self.endpoint, self.body_field
        takes_request = self.dependant.request_param_name is not None
        assert field is not None, f"{self.path} has no body"
        assert "{" not in self.path, (
            f"{self.path}: a DirectRoute ignores dependencies, so its path must have no parameters"
        )
        model: Any = field.field_info.annotation

        async def handle(request: BoundedRequest) -> Response:
            service, body = request.service, parsed(model, await request.taken_json())
            answer: Response = await endpoint(body, service, *([request] if takes_request else []))
            return answer

        return _bounded(handle, field, typed=False)


class Head:
    """Pure ASGI middleware that passes HEAD requests to the routes as GET requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request. In answer to a HEAD request, send only the headers."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        over = False
        # The server must not read files for an answer without a body.
        files = {**scope.get("extensions", {}), "http.response.pathsend": {}}
        # `Range` is only defined for GET (RFC 9110, 14.2).
        headers = [(name, value) for name, value in scope["headers"] if name != b"range"]

        async def bare(message: Message) -> None:
            """Pass on the status and headers, and replace the body by an empty body.

            The empty body ends the answer. The server then reports to the route that the client has disconnected, so a
            route that streams its answer stops early.
            """
            nonlocal over
            if message["type"] not in ("http.response.body", "http.response.pathsend"):
                await send(message)
            elif not over:
                over = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        # This is a copy. The server must still see HEAD to know that the answer has no body.
        get = {**scope, "method": "GET", "headers": headers, "extensions": files}
        await self._app(get, receive, bare)
        scope["route"] = get.get("route")


class Shortcut:
    """Innermost, pure ASGI middleware that passes POST requests directly to the handlers of `DirectRoute` routes.

    This avoids the framework's routing, which would take half of the time that a short request spends outside the
    model. FastAPI still documents these routes, and answers requests to their paths with methods other than POST.
    """

    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter]) -> None:
        self._app = app
        routes = [route for router in routers for route in router.routes if isinstance(route, DirectRoute)]
        self._direct = {route.path: (route, route.get_route_handler()) for route in routes if "{" not in route.path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a POST request to the path of a `DirectRoute`. Forward any other request to the framework."""
        direct = self._direct.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if not direct:
            await self._app(scope, receive, send)
            return
        scope["route"], handle = direct
        request = Request(scope, receive, send)
        try:
            response = await handle(request)
        except ServiceError as error:
            response = service_error(request, error)
        except HTTPException as error:
            response = http_error(request, error)
        await response(scope, receive, send)


def parsed(model: type[Model], raw: Any) -> Model:
    """Return the JSON value `raw` as a `model`, or raise `Invalid` with a description of the first error."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise invalid(error.errors()) from None


def check_counts(body: Any, settings: Settings, *, patch: bool = False) -> None:
    """Raise `TooLarge` if a body has more texts or token ids than a request may have.

    With `patch`, `ids` are ids of documents, which have a limit of their own.
    """
    if not isinstance(body, dict):
        return
    inputs = body.get("inputs")
    sides = {f"inputs.{side}": inputs.get(side) for side in _SIDES} if isinstance(inputs, dict) else {}
    for field, value in {**{name: body.get(name) for name in _TEXTS}, **sides}.items():
        if isinstance(value, list):
            check_count(len(value), settings.max_request_texts, field)
    for field in _TEXTS_OR_IDS:
        if not isinstance(given := body.get(field), list) or (patch and field == "ids"):
            continue
        if given and is_number(given[0]):
            ids = len(given)
        else:
            check_count(len(given), settings.max_request_texts, field)
            ids = sum(len(one) for one in given if isinstance(one, list))
        check_count(ids, settings.max_request_tokens, field, "token ids")


def _bounded(handle: Work, field: Any, *, typed: bool, closed: bool = False) -> Handler:
    """Wrap a handler so that it gets the whole body, checked against the limits of a request.

    With `typed`, FastAPI parses the body, so a request with a body must have a content type. Without `typed`, a missing
    content type means JSON. With `closed`, a route that reads no body refuses a body.
    """
    required = field is not None and field.field_info.is_required()

    async def answer(request: BoundedRequest) -> Response:
        service = request.service
        async with service.receiving():
            empty = not await request.body()
        if field is not None and not empty:
            if typed and not request.headers.get("content-type"):
                raise UnsupportedMedia("is missing: this route reads application/json", field="content-type")
            if not is_json(media_type(request)):
                raise UnsupportedMedia(f"this route reads application/json, not {media_type(request)}")
            check_counts(await request.json(), service.settings, patch=request.method == "PATCH")
        elif required:
            raise Malformed("the body is empty")
        elif closed and field is None and (await request.body()).strip() not in NOTHING:
            raise Invalid("must be empty, because this route reads no body", field="body")
        return await while_connected(request, handle(request))

    return _in_time(answer)


def _in_time(answer: Work) -> Handler:
    """Wrap a handler so that the deadline and the priority in the request's headers apply.

    The wrapped handler raises `Expired` after the deadline. If the caller has disconnected, it returns a response with
    the status `CLIENT_LEFT`.
    """

    async def in_time(received: Request) -> Response:
        request = BoundedRequest(received.scope, received.receive)
        seconds, priority = _patience(request), request.headers.get(PRIORITY)
        bulk = priority is not None and parse_priority(priority)
        try:
            async with AsyncExitStack() as request.held:
                if seconds is None and not bulk:
                    return await answer(request)
                async with asyncio.timeout(seconds) as patience:
                    with holding(BULK, bulk):
                        return await answer(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_LEFT)
        except TimeoutError:
            if seconds is None or not patience.expired():
                raise
            raise Expired(f"no answer within the {1000 * seconds:.0f} ms of {TIMEOUT}") from None

    return in_time


def _patience(request: Request) -> float | None:
    """Return the time limit of a request in seconds, or None if the caller set no limit.

    The time starts when the headers have been received.

    Raises:
        Invalid: the header with the limit is not a whole number of milliseconds in the allowed range.
    """
    given = request.headers.get(TIMEOUT)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and 0 < int(given[:10]) <= LONGEST_TIMEOUT and len(given) <= 9):
        raise Invalid(f"must be a whole number of milliseconds, from 1 to {LONGEST_TIMEOUT}", field=TIMEOUT)
    return int(given) / 1000


async def while_connected(request: starlette.requests.Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Run `work` and return its response.

    If the caller disconnects, cancel `work` and return a response with the status `CLIENT_LEFT`. Queued texts of
    cancelled work are never embedded.
    """
    working = asyncio.current_task()
    assert working is not None
    left, before = False, working.cancelling()
    watching: asyncio.Task[None] | None = None

    async def watch() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        working.cancel()

    def begin() -> None:
        nonlocal watching
        watching = asyncio.create_task(watch())

    beginning = asyncio.get_running_loop().call_later(WATCHED_AFTER, begin)
    try:
        return await work
    except asyncio.CancelledError:
        # Raise the error if another task, and not the caller, cancelled this task. The other task waits until this task
        # ends.
        if not left or working.cancelling() > before + 1:
            raise
        return Response(status_code=CLIENT_LEFT)
    finally:
        beginning.cancel()
        if watching:
            watching.cancel()
        if left:
            working.uncancel()
