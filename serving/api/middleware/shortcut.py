"""Fast path past the framework's routing, which takes half of a text's time outside the model."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.api.routing.errors import http_error, service_error
from serving.api.routing.route import DirectRoute
from serving.errors import ServiceError

# Trailing slashes: such a path means the path without the slash, if only that is a route.


class TrailingSlash:
    """Outermost, pure ASGI middleware, so that keys and logs see the path of the route.

    A redirect does not work: clients repeat a POST without its body, or not at all.
    """

    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter]) -> None:
        self._app = app
        self._routes = [route for router in routers for route in router.routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Remove a trailing slash if needed, and handle the request."""
        if scope["type"] == "http" and scope["path"].endswith("/") and not self._takes(scope):
            bare = {"path": scope["path"][:-1], "raw_path": scope.get("raw_path", b"").removesuffix(b"/")}
            if self._takes({**scope, **bare}):
                scope.update(bare)
        await self._app(scope, receive, send)

    def _takes(self, scope: Scope) -> bool:
        """Return whether a route has this path, by any method. `{id:any}` must not match an empty string."""
        for route in self._routes:
            match, found = route.matches(scope)
            if match is not Match.NONE and all(found.get("path_params", {}).values()):
                return True
        return False


class Shortcut:
    """Innermost, pure ASGI middleware: it sends a POST to the path of a `DirectRoute` straight to its handler.

    FastAPI has the same routes, documents them, and answers all other requests to their paths.
    """

    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter]) -> None:
        self._app = app
        routes = [route for router in routers for route in router.routes if isinstance(route, DirectRoute)]
        self._direct = {route.path: (route, route.get_route_handler()) for route in routes if "{" not in route.path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or forward it."""
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
