"""The header `x-request-id` of every response: the caller's own id, or a new one."""

from __future__ import annotations

import re
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.answer_start import hearing

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

        await self._app(scope, receive, hearing(send, stamp))


def new_id() -> str:
    """Return a unique id."""
    return uuid.uuid4().hex


def id_of(scope: MutableMapping[str, Any]) -> str:
    """Return the id of the request."""
    return str(scope.get("state", {}).get("request_id", ""))
