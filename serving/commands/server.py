"""uvicorn's server, extended by graceful shutdown, reloads, and limits on connections.

On SIGTERM, the server refuses new requests, answers all admitted requests, and then closes its socket. On SIGHUP, the
server reloads its bundles. If the SIGHUP comes from the closing of the server's terminal, the server handles it like
SIGTERM.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import threading
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

import httptools
import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serving.api.middleware.edge import REQUEST_ID
from serving.api.middleware.same_origin import is_loopback
from serving.api.routing.request_body import MIN_BYTES_PER_SECOND
from serving.app import create_app
from serving.errors import ServiceError
from serving.operations.context import CONNECTION, holding
from serving.service import Service
from serving.settings import Settings

HEAD_SECONDS = 10.0
UNREAD_SECONDS = 60.0
"""Period in seconds over which the reading speed of a client is checked. A client must read at least
`MIN_BYTES_PER_SECOND`."""
HEAD_BYTES = 65_536
"""Maximum bytes of a request's head. The same limit applies to the bytes between two pieces of a body, such as chunk
sizes, and to the trailers after a body."""
_TOO_LARGE = f"the head of a request, or its trailers, must not have more than {HEAD_BYTES} bytes"
_OF_AN_UPGRADE = (b"upgrade", b"http2-settings")
SECONDS_TO_ASK = 0.5
"""A stopping server waits this number of seconds, closes its listening sockets, waits again, and then exits. Clients
that are just connecting can therefore still get the status 503."""
SECONDS_TO_SEND = 5
"""Maximum seconds for sending the last answers after the request handlers have finished."""
SECONDS_IDLE = 75
"""Keep-alive timeout: maximum seconds between two requests on a connection. It is longer than the 60 s of common load
balancers."""
LOCAL = ("127.0.0.1", "::1")
"""Addresses of `localhost`. Many programs try the IPv6 address `::1` first."""
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Error numbers for an address that this machine does not have, for example without IPv6."""


class BindError(RuntimeError):
    """The server can't listen on the address. The message names the address."""


def bind(settings: Settings) -> list[socket.socket]:
    """Open the server's sockets. For `localhost`, open one socket for IPv4 and one for IPv6.

    Raises:
        BindError: the port is in use, this machine does not have the address, or `check_exposure` refuses the address.
    """
    bound = _bound(LOCAL if settings.host == "localhost" else (settings.host,), settings.port)
    try:
        check_exposure(settings, bound[0].getsockname()[0])
    except BindError:
        bound[0].close()
        raise
    return bound


def check_exposure(settings: Settings, address: str) -> None:
    """Raise `BindError` if other machines can reach the server at `address` and the server requires no API keys.

    With the setting `insecure`, nothing is checked.
    """
    if not (is_loopback(address) or settings.api_keys_file or settings.insecure):
        raise BindError(
            f"other machines can reach {settings.host}: require keys (--api-keys-file), or allow everybody (--insecure)"
        )


def _bound(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Bind one socket for each of `hosts`, all to the same port. Hosts that this machine does not have are skipped.

    Raises:
        BindError: a host can't be bound, or this machine has none of the hosts.
    """
    bound: list[socket.socket] = []
    with ExitStack() as opened:
        for host in hosts:
            try:
                bound.append(opened.enter_context(_socket(host, bound[0].getsockname()[1] if bound else port)))
            except OSError as error:
                if error.errno not in ABSENT or (host == hosts[-1] and not bound):
                    hint = ": choose another port with --port" if error.errno == errno.EADDRINUSE else ""
                    raise BindError(f"can't listen on {host}:{port}: {error.strerror or error}{hint}") from None
        opened.pop_all()
    return bound


def _socket(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    # Without TCP_NODELAY, Nagle's algorithm would delay every answer. asyncio sets TCP_NODELAY only on sockets that are
    # created with IPPROTO_TCP.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made


class Server(uvicorn.Server):
    """Server that serves one service on its sockets.

    Raises:
        KeysError: the file of API keys can't be used.
        TracingError: traces are configured, but the extra `otel` is not installed.
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
        """Start uvicorn. In the main thread, also install the handler for SIGHUP."""
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            self._reloading = asyncio.create_task(self._reload_when_told())
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.handle_hangup)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def handle_hangup(self) -> None:
        """Reload the bundles, or shut down if the terminal that started the server was closed."""
        if self._attended and not _has_terminal():
            self.handle_exit(signal.SIGTERM, None)
        else:
            self._hung_up.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down gracefully on the first signal. Exit immediately on the second signal."""
        if self._draining:
            self.force_exit = True
            super().handle_exit(sig, frame)
            return
        self._draining = asyncio.get_event_loop().create_task(self._drain())

    async def _reload_when_told(self) -> None:
        """Reload the bundles whenever a signal arrives.

        Signals that arrive during a reload cause one more reload, because a bundle may have changed since the first
        reload began.
        """
        while True:
            await self._hung_up.wait()
            await self._service.loaded.wait()
            await self._service.encoders.settled()
            self._hung_up.clear()
            with suppress(ServiceError):  # the error is logged, and no caller waits for it
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
            self.should_exit = True  # needed after an error, too, because nothing else would end the process


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


# uvicorn limits neither the time to read a head, nor the time to send an answer, nor the size of a head. Its only timer
# closes a connection that is idle between two requests, and the first byte of a request stops that timer. The following
# classes add these limits.


class _Parser(httptools.HttpRequestParser):
    """The HTTP parser of httptools, which here also reads the body of a request with the header `Upgrade`.

    httptools treats such a body as data of another protocol. This server supports no other protocol, and a server may
    ignore `Upgrade` (RFC 9110, 7.8). Java's standard HTTP client sends `Upgrade` with every request.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # uvicorn's parser has the same setting
        self._connection = connection

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._connection.read_without_upgrade(bytes(data[upgrade.args[0] :]))


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with a timer that closes it if the head of a request takes more than `HEAD_SECONDS`.

    The timer starts when the connection is opened, and when the first byte after an answer arrives. The timer also
    starts when an answer is sent before the whole body of its request has arrived. The rest of this body is discarded,
    and the connection is closed if the rest takes more than `HEAD_SECONDS`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = _Parser(self)
        self._clock: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._in_head = False
        self._bodiless = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        """Process received data. Answer 431 if the head or the trailers of a request are too large."""
        self._bodiless += len(data)
        super().data_received(data)
        if self._bodiless > HEAD_BYTES:
            self._refuse(431, _TOO_LARGE)
        elif not (self._clock or self.timeout_keep_alive_task or self._answering or self.transport.is_closing()):
            self._start()  # an empty line is not a request, but it has stopped uvicorn's timer

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        if not self._clock:
            self._start()

    def read_without_upgrade(self, rest: bytes) -> None:
        """Parse the current head again without its header `Upgrade`. Then parse `rest`, the bytes after the head."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "this server is not a proxy")
            return
        head = [method, b" ", self.url, b" HTTP/", self.parser.get_http_version().encode(), b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [one for one in value.split(b",") if one.strip().lower() not in _OF_AN_UPGRADE]
                head += [b"connection: ", b",".join(tokens), b"\r\n"] if tokens else []
            elif name not in _OF_AN_UPGRADE:
                head += [name, b": ", value, b"\r\n"]
        self.parser = _Parser(self)
        self.parser.feed_data(b"".join([*head, b"\r\n", rest]))

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Start the request, or answer 431 if its head is too large.

        The received data may also contain bytes that follow the head. If the data exceed the limit, the size of the
        head alone is therefore computed, from the URL and the headers.

        Raises:
            ValueError: the head is too large. This error stops the parser.
        """
        if self.parser.should_upgrade():
            return  # `read_without_upgrade` will parse this head again
        self._stop()
        if self._bodiless > HEAD_BYTES and self._head_size() > HEAD_BYTES:
            self._refuse(431, _TOO_LARGE)
            raise ValueError(_TOO_LARGE)  # stops the parser
        self._bodiless = 0
        with holding(CONNECTION, id(self)):  # uvicorn starts the task of the request here
            super().on_headers_complete()
        self.headers = []  # the parser appends trailers to this list, and nothing reads them

    def on_body(self, body: bytes) -> None:
        self._bodiless = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and not self._clock and not self.transport.is_closing():
            self._start()

    def pause_writing(self) -> None:
        """Start the timer for unread answers, because the client reads more slowly than the server writes."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Stop the timer for unread answers. uvicorn calls this when the client has read nearly all data."""
        super().resume_writing()
        self._unwatch()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection after its client has read the last answer.

        A client that reads too slowly is disconnected; see `UNREAD_SECONDS`.
        """
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size() and not self._unread:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._unwatch()
        super().connection_lost(exc)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _watch(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(UNREAD_SECONDS, self._still_unread, left)

    def _unwatch(self) -> None:
        if self._unread:
            self._unread.cancel()
            self._unread = None

    def _still_unread(self, before: int) -> None:
        read = before - self.transport.get_write_buffer_size()
        if read < MIN_BYTES_PER_SECOND * UNREAD_SECONDS:
            self.transport.abort()
        else:
            self._watch()

    def _start(self) -> None:
        self._clock = self.loop.call_later(HEAD_SECONDS, self._time_is_up)

    def _stop(self) -> None:
        self._in_head = False
        if self._clock:
            self._clock.cancel()
            self._clock = None

    def _time_is_up(self) -> None:
        if self._in_head and not self._answering:
            self._refuse(408, f"the head of the request did not arrive within {HEAD_SECONDS:g} s")
        else:
            self.shutdown()  # closes the connection now, or after the answer to the previous request

    def send_400_response(self, msg: str) -> None:
        """Send the status 400 and a JSON body in answer to data that is not HTTP. uvicorn itself sends plain text."""
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        if not self.transport.is_closing():
            body = orjson.dumps({"error": message, "error_type": "Validation"})
            headers = {
                "content-type": "application/json",
                "content-length": len(body),
                "connection": "close",
                REQUEST_ID: uuid.uuid4().hex,
            }
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(STATUS_LINE[status] + head.encode() + b"\r\n" + body)
            self.transport.close()
