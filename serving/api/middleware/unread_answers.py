"""Limit on the bytes of answers that clients have not read yet."""

from __future__ import annotations

from contextlib import ExitStack

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.middleware.edge import PROBES
from serving.api.routing.auth import SAFE, scope_for
from serving.api.routing.errors import service_error
from serving.errors import ServiceError
from serving.operations.limits import UnreadBytes, current_caller
from serving.settings import Settings

UNCOUNTED = 65_536
"""Answers of at most this many bytes do not count towards the limit. Small answers are therefore always sent, even if
other clients leave many bytes unread."""
PIECE = 1 << 18
"""Maximum bytes of an answer that the server sends at once. The server sends more when the client has read most of
these bytes."""


class UnreadLimit:
    """Pure ASGI middleware that limits the bytes of unread answers.

    It runs after authentication, because an API key can have its own limit. An answer of more than `UNCOUNTED` bytes
    counts until the client has read it. If such an answer would exceed the limit, and its request has changed nothing,
    an error replaces the answer. The answer to a request that changes data is always sent, because the change has
    already happened.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._all = UnreadBytes(limit, "answers of this server")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request.

        The head of an answer is held back until the route sends the first piece of the body. An error can
        replace the answer only if this piece is the whole body. A body in several pieces is always sent.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        refused: ServiceError | None = None

        async def counted(message: Message) -> None:
            nonlocal start, refused
            if refused:
                return
            if message["type"] == "http.response.start":
                start = message
                return
            body = message.get("body", b"")
            # An error can only replace an answer whose head was not sent yet, and whose body is complete.
            whole = start is not None and not message.get("more_body", False)
            with ExitStack() as held:
                if len(body) > UNCOUNTED:
                    caller = current_caller()
                    own = caller.unread if caller else None
                    try:
                        for unread in (own, self._all) if own else (self._all,):
                            held.enter_context(unread.holding(len(body), refusable=whole and _is_read(scope)))
                    except ServiceError as error:
                        # Drop the traceback, because its frames would keep the answer in memory.
                        refused = error.with_traceback(None)
                        return
                if start:
                    await send(start)
                    start = None
                for end in range(PIECE, len(body), PIECE):
                    await send({"type": message["type"], "body": body[end - PIECE : end], "more_body": True})
                last = (len(body) - 1) // PIECE * PIECE if body else 0
                await send({**message, "body": body[last:]})

        await self._app(scope, receive, counted)
        if refused:
            await service_error(Request(scope), refused)(scope, receive, send)


def _is_read(scope: Scope) -> bool:
    """Return whether an error may replace the answer.

    This is so if the request changes nothing and is not one of the frequent requests of monitoring systems (`PROBES`).
    """
    method, path = scope["method"], scope["path"]
    return path not in PROBES and (method in SAFE or scope_for(method, path) == "read")


def largest_answer(settings: Settings) -> int:
    """Return the maximum bytes of an answer to the current caller."""
    caller = current_caller()
    own = caller.unread.limit if caller and caller.unread else settings.max_unread_bytes
    return min(own, settings.max_unread_bytes)
