"""Reading of request bodies: limited in size and time, decompressed, and parsed once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request

from serving.errors import Overloaded, TooLarge, TooSlow
from serving.operations.encoding import content_coding, inflated
from serving.operations.json_body import LARGE, parse_json
from serving.operations.limits import loop_turn
from serving.service import Service

T = TypeVar("T")
MIN_BYTES_PER_SECOND = 1000
"""Minimum average speed of a request's body."""
UNCOUNTED = 65_536
"""Number of bytes of each body that are always admitted, so that large slow bodies don't block small bodies."""
RETRY_SECONDS = 1


class BytesInFlight:
    """Counter of the bytes of all bodies being received, beyond the first `UNCOUNTED` of each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Count a body while it arrives. The caller reports its size so far to the yielded function.

        Raises:
            Overloaded: the other bodies leave no room. A body that arrives alone is always admitted.
        """
        counted = 0

        def grown(size: int) -> None:
            nonlocal counted
            more = max(0, size - UNCOUNTED) - counted
            if more and self._bytes > counted and self._bytes + more > self._limit:
                raise Overloaded(
                    f"requests that are being received hold {self._bytes} bytes, the most is {self._limit}",
                    retry_after=RETRY_SECONDS,
                )
            counted += more
            self._bytes += more

        try:
            yield grown
        finally:
            self._bytes -= counted


class BoundedRequest(Request):
    """A request whose body is limited while it is read, and parsed by `parse_json`."""

    @property
    def service(self) -> Service:
        """The app's service, from its lifespan state."""
        found: Service = self.state.service
        return found

    async def body(self) -> bytes:
        """Return the whole body, decompressed.

        Raises:
            TooLarge: it exceeds `max_body_bytes`, by its Content-Length, by the received bytes, or decompressed.
            TooSlow: it stalled or arrived too slowly.
            Overloaded: too many bytes of other bodies are being received.
            UnsupportedMedia, Malformed: its content coding is unknown or wrong.
        """
        if not hasattr(self, "_body"):
            limit = self.service.settings.max_body_bytes
            packed = self.headers.get("content-encoding")
            coding = content_coding(packed) if packed else ""
            pieces = list[bytes]()

            async def keep(piece: bytes) -> None:
                pieces.append(piece)

            await self.arrive(keep, limit)

            def whole() -> bytes:
                body = b"".join(pieces)
                return inflated(body, coding, limit) if coding else body

            self._body = await self._prepared(whole, large=bool(coding) or sum(map(len, pieces)) >= LARGE)
        return self._body

    async def arrive(self, take: Callable[[bytes], Awaitable[None]], limit: int, in_memory: int | None = None) -> None:
        """Pass the body as it was sent to `take`, which keeps at most `in_memory` bytes in memory; None means all.

        Raises:
            TooLarge: it exceeds `limit` bytes, by its Content-Length or by the received bytes.
            TooSlow: it stalled or arrived too slowly.
            Overloaded: too many bytes of other bodies are being received.
        """
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise TooLarge(f"the body of {declared} bytes is more than the {limit} of one request")
        pause, size = self.service.settings.body_timeout, 0
        in_flight: BytesInFlight = self.state.bytes_in_flight
        now = asyncio.get_running_loop().time
        started = now()
        try:
            with in_flight.body() as grown:
                async with asyncio.timeout(pause) as patience:
                    async for piece in self.stream():
                        size += len(piece)
                        if size > limit:
                            raise TooLarge(f"the body is more than the {limit} bytes of one request")
                        if not piece:  # the end
                            continue
                        grown(size if in_memory is None else min(size, in_memory))
                        patience.reschedule(None)
                        await take(piece)
                        await loop_turn()
                        patience.reschedule(min(now(), started + size / MIN_BYTES_PER_SECOND) + pause)
        except TimeoutError:
            raise TooSlow(
                f"the body stopped for {pause:g} s, or came in at less than {MIN_BYTES_PER_SECOND} bytes a second"
            ) from None

    async def json(self) -> Any:
        """Return the parsed body, which is parsed only once."""
        if not hasattr(self, "_json"):
            body, tokens = await self.body(), self.service.settings.max_request_tokens
            self._json = await self._prepared(lambda: parse_json(body, tokens), large=len(body) >= LARGE)
        return self._json

    async def _prepared(self, work: Callable[[], T], *, large: bool) -> T:
        return await self.service.library.read(lambda _: work()) if large else work()

    async def taken_json(self) -> Any:
        """Return the parsed body, and free the stored body.

        Call this last. Unknown fields may be the largest part of the body.
        """
        json = await self.json()
        self._body, self._json = b"", None
        return json
