"""Tests of the number of steps of one key for which another key has to wait."""

from __future__ import annotations

import asyncio

from serving.operations.limits import LoopTurn


def test_one_step_goes_on_in_each_pass_of_the_loop_in_the_order_they_came() -> None:
    passes, done = 0, list[tuple[int, int]]()

    async def main() -> None:
        nonlocal passes
        turn = LoopTurn()

        async def step(name: int) -> None:
            await turn.take()
            done.append((name, passes))

        steps = [asyncio.create_task(step(name)) for name in range(6)]
        await asyncio.sleep(0)
        steps[2].cancel()
        for _ in range(20):
            passes += 1
            await asyncio.sleep(0)
        await asyncio.gather(*steps, return_exceptions=True)

    asyncio.run(main())
    assert [name for name, _ in done] == [0, 1, 3, 4, 5]
    assert len({when for _, when in done}) == len(done), "two went on in one pass"


def test_who_comes_alone_goes_on_at_once() -> None:
    async def main() -> None:
        turn = LoopTurn()
        for _ in range(3):
            taking = turn.take()
            try:
                taking.send(None)
            except StopIteration:
                await asyncio.sleep(0)
            else:
                raise AssertionError("it waited")

    asyncio.run(main())
