"""HEAD and OPTIONS for routes with GET."""

from __future__ import annotations

from fastapi import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "POST", "PUT", "DELETE")


class Head:
    """Pure ASGI middleware that presents a HEAD as a GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request; send only the headers in answer to a HEAD."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        over = False
        files = {**scope.get("extensions", {}), "http.response.pathsend": {}}  # files stay unread
        headers = [(name, value) for name, value in scope["headers"] if name != b"range"]  # RFC 9110, 14.2: of GET

        async def bare(message: Message) -> None:
            """Send the head and an empty body. Streams then stop, since the server reports a disconnect."""
            nonlocal over
            if message["type"] not in ("http.response.body", "http.response.pathsend"):
                await send(message)
            elif not over:
                over = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        # A copy, since the server must still see HEAD to know that no body follows.
        get = {**scope, "method": "GET", "headers": headers, "extensions": files}
        await self._app(get, receive, bare)
        scope["route"] = get.get("route")


def allowed(request: Request, told: str) -> str:
    """Return the methods of the request's path as the header `Allow` lists them.

    `told` is the framework's own list. It covers only the first route of the path, but also files of /docs, which are
    not routes.
    """
    routes = request.app.router.routes
    taken = [
        method
        for method in METHODS
        if method in told.split(", ")
        or any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return ", ".join([*taken, *(["HEAD"] if "GET" in taken else []), "OPTIONS"])
