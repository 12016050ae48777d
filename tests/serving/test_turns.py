"""How long a request may wait behind others: its turn comes, whatever they are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.tokenizer import Tokens
from serving.batcher import Batcher
from serving.ports import Embedded
from tests.serving.queues import BUDGET, Engine, batcher, lengths, tokens


@dataclass
class Stepping(Engine):
    """Writes a batch down when it begins, and ends it when told to `step`."""

    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def embed(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        self.batches.append(list(batch))
        assert self.steps.acquire(timeout=5)
        rows = np.array([[one.ids[0], len(one)] for one in batch], dtype=np.float32)
        return Embedded(rows, rows[:, 0])

    ended: int = 0

    async def begun(self, queue: Batcher) -> None:
        """Return when a batch runs, or nothing is left."""
        while len(self.batches) == self.ended and queue.queued_tokens:
            await asyncio.sleep(0)

    async def step(self, queue: Batcher) -> None:
        """End the batch that runs; return when the next one does."""
        self.ended += 1
        self.steps.release()
        await self.begun(queue)


@dataclass
class Came:
    """What a request found when it came."""

    batches: int
    queued: int
    ahead: set[int]
    """Requests with texts in no batch."""


Arrivals = list[list[list[int]]]
arrivals = st.lists(
    st.lists(
        st.one_of(st.lists(lengths, min_size=1, max_size=2), st.lists(lengths, min_size=9, max_size=12)), max_size=3
    ),
    min_size=1,
    max_size=10,
)
"""Before each batch, the requests that come: small ones and large ones."""


def came(shape: Arrivals, engine: Stepping) -> dict[int, Came]:
    """Serve `shape`, a mark for each request; what each of them found."""
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


@given(arrivals)
def test_waiting_is_bounded_by_what_was_ahead(shape: Arrivals) -> None:
    engine = Stepping()
    for mark, request in came(shape, engine).items():
        first = next(i for i, batch in enumerate(engine.batches) if any(one.ids[0] == mark for one in batch))
        before = engine.batches[request.batches : first]
        assert len(before) <= len(request.ahead) + 1
        assert sum(len(one) for batch in before for one in batch) <= 2 * request.queued + BUDGET


def test_a_large_request_delays_a_single_by_no_more_than_the_batch_that_runs() -> None:
    engine = Stepping()
    large, single = [[30] * 100], [[3]]
    came([large, [], single, [], single, single], engine)
    marks = [{int(one.ids[0]) for one in batch} for batch in engine.batches]
    assert marks[:9] == [{100}, {100}, {100}, {101}, {100}, {102}, {100}, {103}, {100}]


def test_a_crowd_behind_a_text_does_not_pass_it_at_will() -> None:
    """Every text ahead of the odd one could fill its batch with others of its own length that came later."""
    engine = Stepping()
    ahead = [1, 2, 4, 7, 12]
    crowd = [[n] * 20 for n in ahead]
    found = came([[[60, 60]], [*([n] for n in ahead), [50], *crowd], crowd], engine)
    odd = 101 + len(ahead)
    assert len(found[odd].ahead) == len(ahead)
    first = next(i for i, batch in enumerate(engine.batches) if any(one.ids[0] == odd for one in batch))
    before = engine.batches[found[odd].batches : first]
    assert sum(len(one) for batch in before for one in batch) <= 2 * found[odd].queued + BUDGET
