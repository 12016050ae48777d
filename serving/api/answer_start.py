"""Hook for middleware on the start of an answer."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Message, Send

PROBES = {"/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics"}
"""Paths that monitoring requests every few seconds. They are not traced, and are logged only if they fail."""


def hearing(send: Send, heard: Callable[[Message], None]) -> Send:
    """Wrap `send`: call `heard` with the start of the answer before it is sent. `heard` may change it."""

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            heard(message)
        await send(message)

    return told
