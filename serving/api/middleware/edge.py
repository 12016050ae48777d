"""The outer middleware of the application, which sees every request before and after its route."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Iterable

from fastapi import APIRouter
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.routing.errors import internal_error, service_error
from serving.errors import shutting_down
from serving.service import Service

log = logging.getLogger("serving.access")

REQUEST_ID = "x-request-id"
PROBES = {"/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics"}
"""Paths that monitoring systems request every few seconds. The server does not trace these requests, and logs them at
debug level if they succeed."""
CORS_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_ACCEPTED_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class TrailingSlash:
    """Outermost, pure ASGI middleware that removes a trailing slash from the path of a request.

    It removes the slash if a route has the path without the slash, and no route has the path with the slash. It is
    outermost, so that authentication and logs see the path of the route. A redirect would not work for all clients.
    Some clients do not follow a redirect of a POST, and others follow it but do not send the body again.
    """

    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter]) -> None:
        self._app = app
        self._routes = [route for router in routers for route in router.routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Remove the trailing slash if needed, and handle the request."""
        if scope["type"] == "http" and scope["path"].endswith("/") and not self._takes(scope):
            bare = {"path": scope["path"][:-1], "raw_path": scope.get("raw_path", b"").removesuffix(b"/")}
            if self._takes({**scope, **bare}):
                scope.update(bare)
        await self._app(scope, receive, send)

    def _takes(self, scope: Scope) -> bool:
        """Return whether a route has the path in `scope`, for any method.

        A route whose parameter `{id:any}` would be empty does not count.
        """
        found = (route.matches(scope) for route in self._routes)
        return any(match is not Match.NONE and all(child.get("path_params", {}).values()) for match, child in found)


class Edge:
    """Pure ASGI middleware: request ids, the access log, CORS for `origins`, and answers to unexpected errors.

    Every response has the header `x-request-id`. An id that the caller sent is kept if it has up to 128 visible ASCII
    characters. Otherwise, the request gets a new id. Log lines name the route by its template, because a path may
    contain the id of a document. CORS headers are also added to error answers, so that browsers can read these
    answers.
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...] = ()) -> None:
        """Wrap `app`. Pages from `origins` may send any header, and read any header of an answer.

        Cookies are not allowed, because browsers send cookies by themselves. Pages must authenticate with API keys.
        """
        self._app = app
        self._answer: ASGIApp = self._without_bugs
        if origins:
            self._answer = CORSMiddleware(
                self._without_bugs,
                allow_origins=origins,
                allow_methods=CORS_METHODS,
                allow_headers=["*"],
                expose_headers=["*"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request and log its result. The logged status is null if no answer was begun."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, state = time.perf_counter(), scope.setdefault("state", {})
        given = next((value for name, value in scope["headers"] if name == REQUEST_ID.encode()), b"")
        name = given if _ACCEPTED_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        state["request_id"], state["status"] = name.decode(), None

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                state["status"] = message["status"]
                message["headers"] = [*message.get("headers", []), (REQUEST_ID.encode(), name)]
            await send(message)

        try:
            await self._answer(scope, receive, stamped)
        finally:
            route, key, status = scope.get("route"), state.get("key"), state["status"]
            fields = {
                "method": scope["method"],
                "route": route.path if route else None,
                "status": status,
                "ms": round(1000 * (time.perf_counter() - started), 2),
                "key": key.name if key else None,
                "request_id": name.decode(),
            }
            usual = status == 200 and scope["path"] in PROBES
            log.log(logging.DEBUG if usual else logging.INFO, "request", extra={"fields": fields})

    async def _without_bugs(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request.

        After an unexpected exception, answer 500. If the server cancels the request at shutdown, answer 503. An answer
        that was already begun stays incomplete.
        """
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            service: Service = scope["state"]["service"]
            if service.health.state != "draining":
                raise
            # Only the server cancels whole requests. If an answer was begun, the log says that the answer is
            # incomplete.
            if scope["state"]["status"] is None:
                await service_error(Request(scope), shutting_down())(scope, receive, send)
        except Exception as error:
            if scope["state"]["status"] is not None:
                raise
            await internal_error(Request(scope), error, scope["state"]["request_id"])(scope, receive, send)
