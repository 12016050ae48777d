"""A request's body: bounded and timed while it arrives, unpacked, parsed once."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request

from serving.api.deps import arriving_of, service_of
from serving.api.encoding import content_coding, inflated
from serving.errors import TooLarge, TooSlow
from serving.json_body import parse_json

MIN_BYTES_PER_SECOND = 1000
"""What a body must keep up on the whole; a modem of 1990 did."""


class BoundedRequest(Request):
    """A request whose body is bounded while it is read, and parsed by `parse_json`."""

    async def body(self) -> bytes:
        """All of it, without its content coding.

        Raises:
            TooLarge: more than `max_body_bytes`, by its Content-Length, by what has arrived, or unpacked.
            TooSlow: it stalled, or trickled.
            Overloaded: too much of other bodies is on its way.
            UnsupportedMedia, Malformed: its content coding.
        """
        if not hasattr(self, "_body"):
            limit = service_of(self).settings.max_body_bytes
            coding = content_coding(self.headers.get("content-encoding", ""))
            declared = self.headers.get("content-length", "")
            if declared.isdecimal() and int(declared) > limit:
                raise TooLarge(f"the body of {declared} bytes is more than the {limit} of one request")
            body = await self._received(limit)
            self._body = await asyncio.to_thread(inflated, body, coding, limit) if coding else body
        return self._body

    async def _received(self, limit: int) -> bytes:
        pause = service_of(self).settings.body_timeout
        now, body = asyncio.get_running_loop().time, bytearray()
        started = now()
        try:
            with arriving_of(self).body() as grown:
                async with asyncio.timeout(pause) as patience:
                    async for chunk in self.stream():
                        body += chunk
                        if len(body) > limit:
                            raise TooLarge(f"the body is more than the {limit} bytes of one request")
                        grown(len(body))
                        patience.reschedule(min(now(), started + len(body) / MIN_BYTES_PER_SECOND) + pause)
        except TimeoutError:
            raise TooSlow(
                f"the body stopped for {pause:g} s, or came in at less than {MIN_BYTES_PER_SECOND} bytes a second"
            ) from None
        return bytes(body)

    async def json(self) -> Any:
        """The parsed body, parsed once."""
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json
