"""HEAD as GET without its body, and what OPTIONS says."""

from __future__ import annotations

from fastapi import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "POST", "PUT", "DELETE")


class Head:
    """Pure ASGI: routes see a GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; of the answer to a HEAD, only the headers come back."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        over = False
        files = {**scope.get("extensions", {}), "http.response.pathsend": {}}  # a file is named then, and not read
        headers = [(name, value) for name, value in scope["headers"] if name != b"range"]  # RFC 9110, 14.2: of GET

        async def bare(message: Message) -> None:
            """The head, and an empty body that ends at once: a server then tells streams that the caller left."""
            nonlocal over
            if message["type"] not in ("http.response.body", "http.response.pathsend"):
                await send(message)
            elif not over:
                over = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        # a copy: the server, too, must know that no body follows
        get = {**scope, "method": "GET", "headers": headers, "extensions": files}
        await self._app(get, receive, bare)
        scope["route"] = get.get("route")


def allowed(request: Request, told: str) -> str:
    """The methods that the request's path takes, as the header `Allow` has them.

    What the framework `told` is of the first route there alone, but also of the files of /docs, which are no route.
    """
    routes = request.app.router.routes
    taken = [
        method
        for method in METHODS
        if method in told.split(", ")
        or any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return ", ".join([*taken, *(["HEAD"] if "GET" in taken else []), "OPTIONS"])
