"""Tests of the waiting time of a request: its turn comes, whatever the other requests are."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.tokenizer import Tokens
from serving.inference.batcher import Batcher
from serving.inference.engine import Embedded
from serving.inference.fair_queue import WINDOW, FairQueue, Item, Request
from tests.conftest import PATIENCE
from tests.serving.queues import BUDGET, Engine, batcher, lengths, tokens

LOOP = asyncio.new_event_loop()
LOOP.close()  # nobody awaits its futures


@dataclass
class Stepping(Engine):
    """Engine that records a batch when it begins, and ends it by `step`."""

    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def embed(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        self.batches.append(list(batch))
        assert self.steps.acquire(timeout=PATIENCE)
        rows = np.array([[one.ids[0], len(one)] for one in batch], dtype=np.float32)
        return Embedded(rows, rows[:, 0])

    ended: int = 0

    async def begun(self, queue: Batcher) -> None:
        """Return when a batch runs, or when nothing is left."""
        while len(self.batches) == self.ended and queue.queued_tokens:
            await asyncio.sleep(0)

    async def step(self, queue: Batcher) -> None:
        """End the running batch, and return when the next one runs."""
        self.ended += 1
        self.steps.release()
        await self.begun(queue)


@dataclass
class Came:
    """State of the queue when a request arrived."""

    batches: int
    queued: int
    ahead: set[int]
    """Requests with texts that are in no batch yet."""


Arrivals = list[list[list[int]]]
arrivals = st.lists(
    st.lists(
        st.one_of(st.lists(lengths, min_size=1, max_size=2), st.lists(lengths, min_size=9, max_size=12)), max_size=3
    ),
    min_size=1,
    max_size=10,
)
"""Arrivals before each batch, which are small and large requests."""


def came(shape: Arrivals, engine: Stepping) -> dict[int, Came]:
    """Serve `shape`, with a number for each request, and return what each request found at its arrival."""
    found: dict[int, Came] = {}

    async def main() -> None:
        queue = batcher(engine)
        left: dict[int, int] = {}
        waiting = []
        for requests in shape:
            for texts in requests:
                mark = 100 + len(found)
                embedded = engine.marks
                ahead = {one for one, n in left.items() if embedded.count(one) < n}
                found[mark] = Came(len(engine.batches), queue.queued_tokens, ahead)
                left[mark] = len(texts)
                waiting.append(asyncio.create_task(queue.submit([tokens(mark, n) for n in texts])))
                await asyncio.sleep(0)
                await engine.begun(queue)
            if queue.queued_tokens:
                await engine.step(queue)
        while queue.queued_tokens:
            await engine.step(queue)
        await asyncio.gather(*waiting)
        await queue.close()

    asyncio.run(main())
    return found


@pytest.mark.slow
@given(arrivals)
def test_waiting_is_bounded_by_what_was_ahead(shape: Arrivals) -> None:
    engine = Stepping()
    for mark, request in came(shape, engine).items():
        first = next(i for i, batch in enumerate(engine.batches) if any(one.ids[0] == mark for one in batch))
        before = engine.batches[request.batches : first]
        assert len(before) <= len(request.ahead)
        assert sum(len(one) for batch in before for one in batch) <= 2 * request.queued + BUDGET


def test_a_large_request_delays_a_single_by_no_more_than_the_batch_that_runs() -> None:
    engine = Stepping()
    large, single = [[30] * 100], [[3]]
    came([large, [], single, [], single, single], engine)
    marks = [{int(one.ids[0]) for one in batch} for batch in engine.batches]
    assert marks[:9] == [{100}, {100}, {100}, {101}, {100}, {102}, {100}, {103}, {100}]


def test_a_crowd_behind_a_text_does_not_pass_it_at_will() -> None:
    """Put requests behind an odd text. Each text ahead could fill its batch with later texts of its own length."""
    engine = Stepping()
    ahead = [1, 2, 4, 7, 12]
    crowd = [[n] * 20 for n in ahead]
    found = came([[[60, 60]], [*([n] for n in ahead), [50], *crowd], crowd], engine)
    odd = 101 + len(ahead)
    assert len(found[odd].ahead) == len(ahead)
    first = next(i for i, batch in enumerate(engine.batches) if any(one.ids[0] == odd for one in batch))
    before = engine.batches[found[odd].batches : first]
    assert sum(len(one) for batch in before for one in batch) <= 2 * found[odd].queued + BUDGET


@dataclass
class Made:
    """A batch: its leader, whether the leader was first in line, and the numbers of the requests that had arrived."""

    leader: int
    in_turn: bool
    came: int
    marks: set[int]
    tokens: int


def request_of(lengths: Sequence[int], owner: str | int | None = None) -> Request:
    """Return a request whose caller never leaves."""
    return Request([tokens(0, length) for length in lengths], LOOP.create_future(), owner=owner)


def made(shape: Arrivals) -> tuple[list[Made], list[tuple[int, int, int]]]:
    """Return the batches of `shape`, computed without an engine, and facts about each request.

    The facts are the number of the first batch after the request's arrival, the number of requests ahead of it without
    the leader of the previous batch, and the number of tokens ahead.
    """
    turns: FairQueue = FairQueue(BUDGET)
    batches: list[Made] = []
    found: list[tuple[int, int, int]] = []
    requests: list[Request] = []
    running: list[Item] = []
    for coming in [*shape, *([[]] * 1000)]:
        for texts in coming:
            leader = running[0].request if running else None
            ahead = [one for one in requests if one.left and one is not leader]
            queued = sum(one.tokens_left for one in requests) + sum(item.length for item in running)
            found.append((len(batches), len(ahead), queued))
            requests.append(request_of(texts))
            turns.add(requests[-1], queued=queued)
        running = turns.next_batch(queued=sum(one.tokens_left for one in requests))
        if running:
            marks = {requests.index(item.request) for item in running}
            first, tokens = running[0], sum(item.length for item in running)
            batches.append(Made(requests.index(first.request), first.place == 0, len(requests), marks, tokens))
    assert turns.empty and not any(one.left for one in requests)
    return batches, found


@given(arrivals)
def test_as_many_batches_as_requests_ahead_and_twice_the_tokens(shape: Arrivals) -> None:
    batches, found = made(shape)
    for mark, (came, ahead, queued) in enumerate(found):
        first = next(i for i, batch in enumerate(batches) if mark in batch.marks)
        before = batches[came:first]
        assert len(before) <= ahead
        assert sum(batch.tokens for batch in before) <= 2 * queued + BUDGET


@given(arrivals)
def test_out_of_turn_only_newcomers_lead_that_came_before_the_last_batch_in_turn_ended(shape: Arrivals) -> None:
    batches, _ = made(shape)
    seen: set[int] = set()
    came = 0
    for before, batch in pairwise(batches):
        seen |= before.marks
        if before.in_turn:
            came = batch.came
        if not batch.in_turn:
            assert batch.leader not in seen and batch.leader < came


def test_a_turn_lasts_until_a_batchs_worth_of_its_own_tokens_is_taken() -> None:
    """Send requests of many lengths, whose batches others fill. They end in the order of their arrival."""
    lengths = [3, 6, 12, 24]
    batches, _ = made([[lengths] * 6])
    last = {mark: i for i, batch in enumerate(batches) for mark in batch.marks}
    assert sorted(last, key=lambda mark: (last[mark], mark)) == list(range(6))
    endless, _ = made([[[30] * 100, [20, 10, 5]]])
    assert [batch.leader for batch in endless[:3]] == [0, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(lengths, min_size=1, max_size=12)), min_size=1, max_size=20))
def test_owners_lead_in_turn_however_many_requests_each_has(shape: list[tuple[int, list[int]]]) -> None:
    turns: FairQueue = FairQueue(BUDGET)
    requests = [request_of(texts, owner) for owner, texts in shape]
    for request in requests:
        turns.add(request, queued=0)
    led = list[Hashable]()
    while not turns.empty:
        waiting = {request.owner for request in requests if request.left}
        if batch := turns.next_batch(queued=0):
            leader = batch[0].request.owner
            since = {one: led[::-1].index(one) if one in led else len(led) for one in waiting}
            assert since[leader] == max(since.values()), "another one led longer ago"
            led.append(leader)


def test_a_crowd_of_one_owner_delays_anothers_request_by_the_batch_that_runs() -> None:
    turns: FairQueue = FairQueue(BUDGET)
    for _ in range(20):
        turns.add(request_of([30] * 9, "greedy"), queued=0)
    turns.next_batch(queued=0)
    for _ in range(3):
        turns.add(single := request_of([3], "modest"), queued=0)
        assert turns.next_batch(queued=0)[0].request is single
        assert turns.next_batch(queued=0)[0].request.owner == "greedy"


@pytest.mark.parametrize("requests", [1, 4, WINDOW])
def test_texts_of_all_waiting_requests_fill_a_large_batch(requests: int) -> None:
    turns: FairQueue = FairQueue(WINDOW)
    for _ in range(requests):
        turns.add(request_of([1] * (WINDOW // requests)), queued=0)
    batch = turns.next_batch(queued=0)
    assert Counter(item.place for item in batch) == dict.fromkeys(range(requests), WINDOW // requests)
    assert turns.empty


def test_a_batch_has_no_more_texts_than_the_window() -> None:
    turns: FairQueue = FairQueue(2 * WINDOW)
    turns.add(request_of([1] * 2 * WINDOW), queued=0)
    assert len(turns.next_batch(queued=0)) == WINDOW


def test_a_batch_out_of_turn_has_no_text_of_the_owners_that_were_named() -> None:
    turns: FairQueue = FairQueue(BUDGET)
    for owner in ("greedy", "modest", "third"):
        turns.add(request_of([BUDGET // 4] * 12, owner), queued=0)
    assert turns.next_batch(queued=0)[0].request.owner == "greedy"
    batch = turns.next_batch(queued=0, besides=["greedy", "modest"])
    assert [item.request.owner for item in batch] == ["third"] * 4
    assert [turns.next_batch(queued=0)[0].request.owner for _ in range(3)] == ["modest", "greedy", "third"]
    assert turns.next_batch(queued=0, besides=["greedy", "modest", "third"]) == []
