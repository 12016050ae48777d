"""A busy corpus keeps only itself waiting; a caller who left makes room no sooner than the thread does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from serving.lanes import LANE, THREADS, Lanes
from tests.conftest import PATIENCE


def with_lanes(work: Callable[[Lanes], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        lanes = Lanes()
        try:
            async with asyncio.timeout(PATIENCE):
                await work(lanes)
        finally:
            lanes.close()

    asyncio.run(main())


@pytest.mark.parametrize("leave", [False, True])
def test_one_name_never_takes_all_threads(leave: bool) -> None:
    finish, started = threading.Event(), list[int]()

    def busy(i: int) -> int:
        started.append(i)
        assert finish.wait(PATIENCE)
        return i

    async def work(lanes: Lanes) -> None:
        calls = [asyncio.create_task(lanes.run("busy", partial(busy, i))) for i in range(2 * THREADS)]
        while len(started) < LANE:
            await asyncio.sleep(0)
        if leave:
            for call in calls:
                call.cancel()
        assert await lanes.run("other", lambda: "served") == "served"
        assert len(started) == LANE
        finish.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        if leave:
            assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
            assert len(started) == LANE, "work that nobody waits for was begun"
        else:
            assert answers == list(range(2 * THREADS))
            assert not lanes._lanes, "a lane outlived its work"

    with_lanes(work)


def test_an_error_reaches_its_caller() -> None:
    async def work(lanes: Lanes) -> None:
        with pytest.raises(ZeroDivisionError):
            await lanes.run("a", lambda: 1 / 0)

    with_lanes(work)
