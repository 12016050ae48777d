"""uvicorn's server, with a drain and a reload.

On SIGTERM the server refuses new requests, and closes its socket after the others are answered. On SIGHUP it reads the
bundle again. A SIGHUP caused by a closed terminal counts as SIGTERM.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from types import FrameType

import uvicorn

from serving.api.addresses import is_loopback
from serving.app import create_app
from serving.connections import Connection
from serving.errors import ServiceError
from serving.service import Service
from serving.settings import Settings

SECONDS_TO_ASK = 0.5
"""Seconds before the socket closes, and again afterwards, so that clients that are just connecting get 503."""
SECONDS_TO_SEND = 5
"""Seconds after the drain for sending the last answers."""
SECONDS_IDLE = 75
"""Seconds between two requests of a connection, more than the 60 s of usual load balancers."""


LOCAL = ("127.0.0.1", "::1")
"""Addresses of `localhost`. Many programs try the second one first."""
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors for an address that the machine does not have, as when IPv6 is turned off."""


class BindError(RuntimeError):
    """The address is not available. The message names it."""


def bind(settings: Settings) -> list[socket.socket]:
    """Open the sockets before anything slow happens: for `localhost` one for IPv4 and one for IPv6.

    Raises:
        BindError: the port is taken, the host is not this machine's, or others can reach it and no keys are required.
    """
    bound = _bound(LOCAL if settings.host == "localhost" else (settings.host,), settings.port)
    if not (is_loopback(bound[0].getsockname()[0]) or settings.api_keys_file or settings.insecure):
        bound[0].close()
        raise BindError(
            f"others can reach {settings.host}: ask them for keys (--api-keys-file), or let all of them in (--insecure)"
        )
    return bound


def _bound(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Bind one socket for each host that this machine has, all to one port. At least one must exist."""
    bound: list[socket.socket] = []
    with ExitStack() as opened:
        for host in hosts:
            try:
                bound.append(opened.enter_context(_socket(host, bound[0].getsockname()[1] if bound else port)))
            except OSError as error:
                if error.errno not in ABSENT or (host == hosts[-1] and not bound):
                    raise BindError(f"can't listen on {host}:{port}: {error.strerror or error}") from None
        opened.pop_all()
    return bound


def _socket(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    # asyncio sets TCP_NODELAY only if the protocol is named. Nagle's delay would hold back every answer.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made


class Server(uvicorn.Server):
    """Server of one service on its sockets.

    Raises:
        KeysError: the file of keys can't be used.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._draining: asyncio.Task[None] | None = None
        self._hung_up = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None
        self._attended = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and _has_terminal()
        config = uvicorn.Config(
            create_app(service),
            log_config=None,
            access_log=False,
            http=Connection,
            ws="none",
            timeout_keep_alive=SECONDS_IDLE,
            timeout_graceful_shutdown=SECONDS_TO_SEND,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start uvicorn and, in the main thread, handle SIGHUP."""
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            self._reloading = asyncio.create_task(self._reload_when_told())
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.handle_hangup)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def handle_hangup(self) -> None:
        """Read the bundle again, or stop if the terminal that started the server is closed."""
        if self._attended and not _has_terminal():
            self.handle_exit(signal.SIGTERM, None)
        else:
            self._hung_up.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal; exit at once on the second."""
        if self._draining:
            self.force_exit = True
            super().handle_exit(sig, frame)
            return
        self._draining = asyncio.get_event_loop().create_task(self._drain())

    async def _reload_when_told(self) -> None:
        """Reload once per signal, one after another: the bundle may have changed since the last read."""
        while True:
            await self._hung_up.wait()
            await self._service.loaded.wait()
            await self._service.encoders.settled()
            self._hung_up.clear()
            with suppress(ServiceError):  # the error is logged, and nobody waits for an answer
                await self._service.reload()

    async def _drain(self) -> None:
        if self._reloading:
            self._reloading.cancel()
        try:
            await self._service.drain()
            await asyncio.sleep(SECONDS_TO_ASK)
            for listening in self.servers:
                listening.close()
            await asyncio.sleep(SECONDS_TO_ASK)
        finally:
            self.should_exit = True  # even if the drain fails, since nothing else would end the process


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
