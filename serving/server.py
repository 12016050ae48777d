"""uvicorn, with a drain: on SIGTERM requests are refused first, and the socket closes when the rest are answered."""

from __future__ import annotations

import asyncio
import socket
from types import FrameType

import uvicorn

from serving.app import create_app
from serving.service import Service
from serving.settings import Settings

SECONDS_TO_ASK = 0.5
"""Before the socket closes and again after it: callers who are just connecting hear 503 and are not cut off."""
SECONDS_TO_SEND = 5
"""For the last answers to reach their callers, after the drain."""


class BindError(RuntimeError):
    """The address can't be had; the message names it."""


def bind(settings: Settings) -> socket.socket:
    """A listening socket, before anything slow is done.

    Raises:
        BindError: the port is taken, or the host is not one of this machine.
    """
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        # asyncio sets TCP_NODELAY only where the protocol is named; Nagle's delay would hold back every answer
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
    except OSError as error:
        raise BindError(f"can't listen on {settings.host}:{settings.port}: {error.strerror or error}") from None
    return bound


class Server(uvicorn.Server):
    """One service on one socket."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._draining: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            create_app(service),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=SECONDS_TO_SEND,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, a second one ends at once."""
        if self._draining:
            self.force_exit = True
            super().handle_exit(sig, frame)
            return
        self._draining = asyncio.get_event_loop().create_task(self._drain())

    async def _drain(self) -> None:
        await self._service.drain()
        await asyncio.sleep(SECONDS_TO_ASK)
        for listening in self.servers:
            listening.close()
        await asyncio.sleep(SECONDS_TO_ASK)
        self.should_exit = True
