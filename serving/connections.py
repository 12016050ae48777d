"""A connection that waits only so long for the head of a request, reads only so much of it, and waits only so long for
its answer to be read.

uvicorn bounds neither: its one timer ends an idle connection between two requests, and the first byte stops it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serving.api.request_body import MIN_BYTES_PER_SECOND
from serving.api.request_id import HEADER as REQUEST_ID
from serving.api.request_id import new_id

HEAD_SECONDS = 10.0
UNREAD_SECONDS = 60.0
"""In which who is being answered reads something of it, `MIN_BYTES_PER_SECOND` at the least."""
HEAD_BYTES = 65_536
"""Of a head, and of what comes between two pieces of a body: sizes of chunks, trailers."""
_TOO_LARGE = f"the head of a request, or what follows its body, may have {HEAD_BYTES} bytes"


_OF_AN_UPGRADE = (b"upgrade", b"http2-settings")


class _Parser(httptools.HttpRequestParser):
    """httptools', which takes what follows a head with `Upgrade` for another protocol, and reads no body.

    There is none here, and a server may ignore the wish (RFC 9110, 7.8): Java's own client has it in every request.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self._connection = connection

    def feed_data(self, data: Any) -> None:
        """See httptools."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._connection.read_without_upgrade(bytes(data[upgrade.args[0] :]))


class Connection(HttpToolsProtocol):
    """uvicorn's, with a clock that runs while a head is awaited.

    It starts with the connection, with the first byte after an answer, and with an answer that came before the
    body it belongs to was there: the rest of such a body is thrown away, and may not take for ever either.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = _Parser(self)
        self._clock: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._in_head = False
        self._bodiless = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        """See asyncio; a head that is too large, or trailers that are, is a 431."""
        self._bodiless += len(data)
        super().data_received(data)
        if self._bodiless > HEAD_BYTES:
            self._refuse(431, _TOO_LARGE)
        elif not (self._clock or self.timeout_keep_alive_task or self._answering or self.transport.is_closing()):
            self._start()  # an empty line is no request, and has stopped uvicorn's timer

    def on_message_begin(self) -> None:
        """See httptools."""
        super().on_message_begin()
        self._in_head = True
        if not self._clock:
            self._start()

    def read_without_upgrade(self, rest: bytes) -> None:
        """The head that was just read once more, without its wish for another protocol, and what came behind it."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "this server is no proxy")
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
        """See httptools."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_headers_complete(self) -> None:
        """See httptools; a head that may have come in one piece with more is measured by what it holds."""
        if self.parser.should_upgrade():
            return  # it is read once more
        self._stop()
        if self._bodiless > HEAD_BYTES and self._head_size() > HEAD_BYTES:
            self._refuse(431, _TOO_LARGE)
            raise ValueError(_TOO_LARGE)  # to the parser, which stops
        self._bodiless = 0
        super().on_headers_complete()
        self.headers = []  # trailers come here, where nobody reads them

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._bodiless = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """See uvicorn."""
        super().on_response_complete()
        if self.cycle.more_body and not self._clock and not self.transport.is_closing():
            self._start()

    def pause_writing(self) -> None:
        """See asyncio: the answer comes faster than it is read, if it is."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """See asyncio: next to all of it was read."""
        super().resume_writing()
        self._unwatch()

    def timeout_keep_alive_handler(self) -> None:
        """See uvicorn; what is still unread of the last answer may be read yet, but not for ever."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size() and not self._unread:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
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
            self._refuse(408, f"the head of the request was not there within {HEAD_SECONDS:g} s")
        else:
            self.shutdown()  # at once, or when the answer to the request before is out

    def send_400_response(self, msg: str) -> None:
        """See uvicorn, whose own is plain text: what came is not HTTP."""
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        if not self.transport.is_closing():
            body = orjson.dumps({"error": message, "error_type": "Validation"})
            headers = {
                "content-type": "application/json",
                "content-length": len(body),
                "connection": "close",
                REQUEST_ID: new_id(),
            }
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(STATUS_LINE[status] + head.encode() + b"\r\n" + body)
            self.transport.close()
