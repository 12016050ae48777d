"""Reading of request bodies: limited in size and time, decompressed, and parsed once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request

from serving.api.routing.deps import bytes_in_flight_of, service_of
from serving.errors import TooLarge, TooSlow
from serving.operations.encoding import content_coding, inflated
from serving.operations.json_body import LARGE, parse_json
from serving.operations.limits import loop_turn

T = TypeVar("T")
MIN_BYTES_PER_SECOND = 1000
"""Minimum average speed of a body, which a modem of 1990 reached."""


class BoundedRequest(Request):
    """A request whose body is limited while it is read, and parsed by `parse_json`."""

    async def body(self) -> bytes:
        """Return the whole body, decompressed.

        Raises:
            TooLarge: it exceeds `max_body_bytes`, by its Content-Length, by the received bytes, or decompressed.
            TooSlow: it stalled or arrived too slowly.
            Overloaded: too many bytes of other bodies are being received.
            UnsupportedMedia, Malformed: its content coding is unknown or wrong.
        """
        if not hasattr(self, "_body"):
            limit = service_of(self).settings.max_body_bytes
            coding = content_coding(self.headers.get("content-encoding", ""))
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
        pause, size = service_of(self).settings.body_timeout, 0
        now = asyncio.get_running_loop().time
        started = now()
        try:
            with bytes_in_flight_of(self).body() as grown:
                async with asyncio.timeout(pause) as patience:
                    async for piece in self.stream():
                        size += len(piece)
                        if size > limit:
                            raise TooLarge(f"the body is more than the {limit} bytes of one request")
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
            body, tokens = await self.body(), service_of(self).settings.max_request_tokens
            self._json = await self._prepared(lambda: parse_json(body, tokens), large=len(body) >= LARGE)
        return self._json

    async def _prepared(self, work: Callable[[], T], *, large: bool) -> T:
        return await service_of(self).library.prepared(work, of="", large=large)

    def forget(self) -> None:
        """Free the body and its JSON; fields that no one reads may be most of it."""
        self._body, self._json = b"", None
