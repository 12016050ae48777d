"""One line of the log for each request."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.request_id import id_of

log = logging.getLogger("serving.access")


class AccessLog:
    """Pure ASGI: the route is told by its template: a path may quote documents."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and say how it went; the status is null where no answer was begun."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), None

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
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
            log.info("request", extra={"fields": fields})
