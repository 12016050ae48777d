"""Reading of request bodies: with limits on size and time, with decompression, and with parsing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TypeVar

from fastapi import Request

from serving.errors import Overloaded, TooLarge, TooSlow
from serving.operations.encoding import content_coding, inflated
from serving.operations.json_body import LARGE, parse_exact, parse_json
from serving.operations.limits import Caller, current_caller, loop_turn
from serving.service import Service

T = TypeVar("T")
Take = Callable[[bytes], Awaitable[None]]
"""Function that receives the next piece of a body."""
MIN_BYTES_PER_SECOND = 1000
"""Minimum average speed of a request body, in bytes per second."""
UNCOUNTED = 65_536
"""Number of bytes of each body that do not count towards the limit on body bytes in memory. Large slow bodies therefore
never block small bodies."""
MANY_CONTAINERS = 2500
"""Maximum number of opening brackets in an ordinary body, such as a body with 2,048 lists of token ids. For each key,
the server processes bodies with more brackets one at a time."""
KEY_SHARE = 0.75
"""The bodies of one API key may use at most this share of the limit on body bytes in memory. A key's only body may use
more."""
RETRY_SECONDS = 1


class BytesInFlight:
    """Counter of the body bytes in memory. The first `UNCOUNTED` bytes of each body are not counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes: Counter[Caller | None] = Counter()
        """Counted bytes by API key."""

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of one request body towards the limits while the `with` block runs.

        The `with` block must call the yielded function with the size of the body so far, each time the body grows.

        Raises:
            Overloaded: the yielded function raises this error if all bodies together exceed the limit, or if the bodies
                of one API key together exceed their share of the limit. A limit never refuses a body if no other body
                counts towards this limit.
        """
        caller: Caller | None = None
        counted = 0

        def grown(size: int) -> None:
            nonlocal caller, counted
            if more := max(0, size - UNCOUNTED) - counted:
                caller = current_caller()
                self._check(self._bytes.total(), counted, more, self._limit, "bodies of requests")
                if caller:
                    share, whose = int(KEY_SHARE * self._limit), f"bodies of the key {caller.key.name!r}"
                    self._check(self._bytes[caller], counted, more, share, whose)
                counted += more
                self._bytes[caller] += more

        try:
            yield grown
        finally:
            if counted:
                self._bytes[caller] -= counted
                if not self._bytes[caller]:
                    del self._bytes[caller]

    @staticmethod
    def _check(held: int, own: int, more: int, limit: int, whose: str) -> None:
        if held > own and held + more > limit:
            raise Overloaded(
                f"{whose} have {held} bytes in memory, and the limit is {limit}", retry_after=RETRY_SECONDS
            )


class BoundedRequest(Request):
    """A request that limits the size and the duration of its body while the server reads the body.

    The methods `json` and `taken_json` parse the body with the module `json_body`.
    """

    held: AsyncExitStack
    """Resources to release after the request is answered. The route sets this attribute."""

    @property
    def service(self) -> Service:
        """The service of the app, which is stored in the lifespan state."""
        found: Service = self.state.service
        return found

    async def body(self) -> bytes:
        """Return the whole body, decompressed.

        Raises:
            TooLarge: the Content-Length, the received bytes or the decompressed bytes exceed `max_body_bytes`.
            TooSlow: the body stopped arriving, or arrived too slowly.
            Overloaded: too many bytes of other bodies are in memory.
            UnsupportedMedia, Malformed: the content coding is unknown, or does not match the body.
        """
        if not hasattr(self, "_body"):
            limit = self.service.settings.max_body_bytes
            grown = self.held.enter_context(self.state.bytes_in_flight.body())
            packed = self.headers.get("content-encoding")
            coding = content_coding(packed) if packed else ""
            pieces = list[bytes]()

            async def keep(piece: bytes) -> None:
                pieces.append(piece)

            await self._arrive(keep, limit, grown)

            def whole() -> bytes:
                body = b"".join(pieces)
                pieces.clear()  # only the joined body stays in memory
                return inflated(body, coding, limit) if coding else body

            self._body = await self._prepared(whole, large=bool(coding) or sum(map(len, pieces)) >= LARGE)
            grown(len(self._body))  # the decompressed body is larger than the received bytes
        return self._body

    async def arrive(self, take: Take, limit: int, in_memory: int) -> None:
        """Pass each received piece of the body to `take`, which keeps at most `in_memory` bytes in memory.

        The body is not decompressed. Its maximum size is `limit` bytes, not `max_body_bytes`.

        Raises:
            TooLarge: the Content-Length or the received bytes exceed `limit`.
            TooSlow: the body stopped arriving, or arrived too slowly.
            Overloaded: too many bytes of other bodies are in memory.
        """
        with self.state.bytes_in_flight.body() as grown:
            await self._arrive(take, limit, lambda size: grown(min(size, in_memory)))

    async def _arrive(self, take: Take, limit: int, grown: Callable[[int], None]) -> None:
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise TooLarge(f"the body has {declared} bytes, but a request may have at most {limit}")
        pause, size = self.service.settings.body_timeout, 0
        now = asyncio.get_running_loop().time
        started = now()
        try:
            async with asyncio.timeout(pause) as patience:
                async for piece in self.stream():
                    size += len(piece)
                    if size > limit:
                        raise TooLarge(f"the body has more than the {limit} bytes that a request may have")
                    if not piece:  # an empty piece marks the end of the body
                        continue
                    grown(size)
                    patience.reschedule(None)
                    await take(piece)
                    await loop_turn()
                    patience.reschedule(min(now(), started + size / MIN_BYTES_PER_SECOND) + pause)
        except TimeoutError:
            raise TooSlow(
                f"no part of the body arrived for {pause:g} s, or the body arrived at less than "
                f"{MIN_BYTES_PER_SECOND} bytes per second"
            ) from None

    async def json(self) -> Any:
        """Return the parsed body. Only the first call parses the body."""
        if not hasattr(self, "_json"):
            body, tokens = await self.body(), self.service.settings.max_request_tokens
            if body.count(b"[") + body.count(b"{") > MANY_CONTAINERS:
                await self.held.enter_async_context(self.service.library.threads.containers())
            # A PATCH has metadata, whose large integers must be refused as in uploads, not rounded to floats.
            parse = parse_exact if self.scope["method"] == "PATCH" else parse_json
            self._json = await self._prepared(lambda: parse(body, tokens), large=len(body) >= LARGE)
        return self._json

    async def _prepared(self, work: Callable[[], T], *, large: bool) -> T:
        return await self.service.library.read(lambda _: work()) if large else work()

    async def taken_json(self) -> Any:
        """Return the parsed body, and delete it from this request.

        Call this last. Unknown fields may be the largest part of the body. Validation drops these fields, so the
        request must not keep them in memory.
        """
        json = await self.json()
        self._body, self._json = b"", None
        return json
