"""Access log, one line for each request."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.answer_start import PROBES, hearing
from serving.api.request_id import id_of

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
            await self._app(scope, receive, hearing(send, note))
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
