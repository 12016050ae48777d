"""Tests of background work, which continues after a busy server or a temporary failure of the engine."""

from __future__ import annotations

import asyncio

import pytest

from serving.errors import Backend, Damaged, InsufficientStorage, Invalid, NoRoom, Overloaded, ServiceError, Unhealthy
from serving.jobs.job import TRIES, retry_while_busy


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []

    async def sleep(time: float) -> None:
        seconds.append(time)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return seconds


def after(*errors: ServiceError) -> str:
    left = list(errors)

    async def work() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return asyncio.run(retry_while_busy(work))


def test_it_waits_as_long_as_it_is_told(slept: list[float]) -> None:
    others = Unhealthy("going"), InsufficientStorage("full"), *[Backend("failed")] * (TRIES - 1)
    assert after(Overloaded("busy", retry_after=7), *others) == "done"
    assert slept == [7, 1, 1, 0.5, 1, 2, 4, 8]


def test_it_gives_up_on_an_engine_that_keeps_failing() -> None:
    with pytest.raises(Backend):
        after(*[Backend("failed")] * TRIES)


@pytest.mark.parametrize("error", [Invalid("no"), Damaged("c.sqlite: damaged"), NoRoom("taken")])
def test_what_will_never_do_is_said_at_once(slept: list[float], error: ServiceError) -> None:
    with pytest.raises(type(error)):
        after(error)
    assert slept == []
