"""What layers around the routes hear of an answer."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Message, Send

PROBES = {"/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics"}
"""Asked every few seconds by machines: neither traced nor, while all is well, logged."""


def hearing(send: Send, heard: Callable[[Message], None]) -> Send:
    """`send`, of which `heard` is told how the answer starts: before its caller is, and free to change it."""

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            heard(message)
        await send(message)

    return told
