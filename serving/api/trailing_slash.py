"""Trailing slashes: such a path means the path without the slash, if only that is a route."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send


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
