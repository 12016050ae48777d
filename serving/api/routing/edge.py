"""Access log, one line for each request."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Hook for middleware on the start of an answer.

PROBES = {"/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics"}
"""Paths that monitoring requests every few seconds. They are not traced, and are logged only if they fail."""


def on_response_start(send: Send, heard: Callable[[Message], None]) -> Send:
    """Wrap `send`: call `heard` with the start of the answer before it is sent. `heard` may change it."""

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            heard(message)
        await send(message)

    return told


# The header `x-request-id` of every response: the caller's own id, or a new one.

HEADER = "x-request-id"
_ACCEPTED = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestId:
    """Pure ASGI middleware, so that responses stream through it and a disconnect reaches the route."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request, with the id in the scope and in the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER.encode()), b"")
        name = given if _ACCEPTED.fullmatch(given) else new_id().encode()
        scope.setdefault("state", {})["request_id"] = name.decode()

        def stamp(message: Message) -> None:
            message["headers"] = [*message.get("headers", []), (HEADER.encode(), name)]

        await self._app(scope, receive, on_response_start(send, stamp))


def new_id() -> str:
    """Return a unique id."""
    return uuid.uuid4().hex


def id_of(scope: MutableMapping[str, Any]) -> str:
    """Return the id of the request."""
    return str(scope.get("state", {}).get("request_id", ""))


log = logging.getLogger("serving.access")


class AccessLog:
    """Pure ASGI middleware. Lines name the route by its template, since a path may quote documents.

    Monitoring asks for health and metrics every few seconds. Such requests are logged at debug level if they succeed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request and log its result. The status is null if no answer was begun."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), None

        def note(message: Message) -> None:
            nonlocal status
            status = message["status"]

        try:
            await self._app(scope, receive, on_response_start(send, note))
        finally:
            route, key = scope.get("route"), scope["state"].get("key")
            fields = {
                "method": scope["method"],
                "route": route.path if route else None,
                "status": status,
                "ms": round(1000 * (time.perf_counter() - started), 2),
                "key": key.name if key else None,
                "request_id": id_of(scope),
            }
            usual = status == 200 and scope["path"] in PROBES
            log.log(logging.DEBUG if usual else logging.INFO, "request", extra={"fields": fields})
