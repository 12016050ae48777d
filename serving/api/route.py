"""How every route reads its body: bounded, as JSON, and with an eye on whether the caller is still there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

import starlette.requests
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from serving.api.counts import check_counts
from serving.api.deps import service_of
from serving.errors import Malformed, TooLarge, UnsupportedMedia
from serving.json_body import parse_json

CLIENT_LEFT = 499
"""nginx's status for it; nobody reads the answer, but logs and metrics do."""


class BoundedRequest(Request):
    """A request whose body is bounded while it is read, and parsed by `parse_json`."""

    async def body(self) -> bytes:
        """All of it.

        Raises:
            TooLarge: more than `max_body_bytes`, by its Content-Length or by what has arrived.
        """
        if not hasattr(self, "_body"):
            limit = service_of(self).settings.max_body_bytes
            declared = self.headers.get("content-length", "")
            size, chunks = 0, []
            if declared.isdecimal() and int(declared) > limit:
                raise TooLarge(f"the body of {declared} bytes is more than the {limit} of one request")
            async for chunk in self.stream():
                size += len(chunk)
                if size > limit:
                    raise TooLarge(f"the body is more than the {limit} bytes of one request")
                chunks.append(chunk)
            self._body = b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        """The parsed body, parsed once."""
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json


def media_type(request: Request) -> str:
    """The content type without parameters; JSON where the caller says nothing."""
    message = Message()
    message["content-type"] = request.headers.get("content-type", "application/json")
    return message.get_content_type()


def is_json(media: str) -> bool:
    """`application/json` and its kin."""
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


class Route(APIRoute):
    """Reads the body first, then works for as long as the caller stays."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, wrapped."""
        handle = super().get_route_handler()
        field = self.body_field
        required = field is not None and field.field_info.is_required()

        async def bounded(received: Request) -> Response:
            request = BoundedRequest(received.scope, received.receive)
            service = service_of(request)
            try:
                async with service.receiving():
                    body = await request.body()
            except ClientDisconnect:
                return Response(status_code=CLIENT_LEFT)
            if field is not None and body:
                if not is_json(media_type(request)):
                    raise UnsupportedMedia(f"this route reads application/json, not {media_type(request)}")
                check_counts(await request.json(), service.settings)
            elif required:
                raise Malformed("the body is empty")
            return await _while_connected(request, handle(request))

        return bounded


async def _while_connected(request: starlette.requests.Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Run `work`, cancelled when the caller leaves: what it queued is then never embedded."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await working
        return Response(status_code=CLIENT_LEFT)
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnected(request: starlette.requests.Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
