"""Tests of the end of a request by its caller or by the task that answers it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import APIRouter, Response
from pydantic import BaseModel
from starlette.requests import Request

from serving.api.routing.route import CLIENT_LEFT, DirectRoute, while_connected
from tests.conftest import PATIENCE


@pytest.mark.parametrize("outside", [False, True], ids=["the caller leaves", "and the task is cancelled"])
def test_a_cancellation_from_outside_is_never_taken_for_the_caller_leaving(outside: bool) -> None:
    async def main() -> None:
        leaves = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await leaves.wait()
            if outside:
                answering.cancel()
            return {"type": "http.disconnect"}

        async def work() -> Response:
            await asyncio.Event().wait()
            raise AssertionError

        answering = asyncio.create_task(while_connected(Request({"type": "http"}, receive), work()))
        await asyncio.sleep(0)
        leaves.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([answering])
        assert answering.cancelled() == outside
        assert outside or answering.result().status_code == CLIENT_LEFT
        assert answering.cancelling() == outside, "the caller's own leaving is no longer pending"

    asyncio.run(main())


def test_nobody_is_watched_for_an_answer_that_is_there_at_once() -> None:
    async def main() -> None:
        async def receive() -> dict[str, Any]:
            raise AssertionError("asked whether the caller is still there")

        async def work() -> Response:
            return Response(status_code=204)

        before = asyncio.all_tasks()
        answer = await while_connected(Request({"type": "http"}, receive), work())
        assert answer.status_code == 204 and asyncio.all_tasks() == before

    asyncio.run(main())


class Asked(BaseModel):
    """Body of a route."""

    text: str


def test_a_direct_route_takes_nothing_from_its_path() -> None:
    """Declare no path parameters, because FastAPI's checks are skipped on direct routes."""

    async def endpoint(body: Asked, service: object) -> Response:
        raise AssertionError

    router = APIRouter(route_class=DirectRoute)
    with pytest.raises(AssertionError, match=r"/models/\{name\}: a DirectRoute ignores dependencies"):
        router.post("/models/{name}")(endpoint)
