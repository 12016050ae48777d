"""Requests in, batches out: what arrived while the engine was busy is the next batch."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Protocol

from models.tokenizer import Tokens
from serving.encoders.request import Answer, Request
from serving.encoders.streams import Streams
from serving.encoders.turns import Item, Turns
from serving.errors import Backend, Overloaded, ServiceError, going
from serving.keys.limits import Caller, payer
from serving.ports import Embedded

log = logging.getLogger(__name__)

FAILURES = 3
"""Batches in a row after which an engine counts as failing."""
RESERVED_SECONDS = 1.0
"""For so long after the last interactive request bulk work leaves a stream free, where there are two; and for so long
after requests of two keys met, or followed each other, several keys ask."""
BULK_TURN = 8
"""While bulk work waits, it has a batch after at most so many others."""
CULPRITS = 8
"""Requests that fail alone, while no other succeeds, after which the engine itself is taken to be broken."""
KEY_SHARE = 0.75
"""Of the queue's room, which one key may take by several requests."""
NOBODY: Mapping[Caller | None, int] = {}
SMALL_PART = 8
"""Batches have so small a part of the budget where others would wait for them: while several keys ask, and bulk work on
a single stream that was interactive a moment ago."""


class Embed(Protocol):
    """An engine at work."""

    def __call__(self, batch: Sequence[Tokens], /, *, alone: bool) -> Embedded:
        """One batch; `alone` says that none runs beside it, and none waits."""


class Batcher:
    """One queue before one engine, whose `embed` runs in as many threads as it has streams.

    No timer: an idle stream starts at once, and idle streams share what waits. All texts of a request are admitted or
    none. Who waits for whom is the law of `Turns`, once for interactive requests and once for bulk work, which comes
    after them: where anybody interactive was here within `RESERVED_SECONDS` it leaves a stream free, and where they
    never cease it has a batch after each `BULK_TURN` of theirs. Engines that share the streams of a machine are given
    the same `shared`.
    """

    def __init__(
        self,
        embed: Embed,
        *,
        max_batch_tokens: int,
        max_queued_tokens: int,
        streams: int = 1,
        shared: Streams | None = None,
        length_step: int = 1,
        observe: Callable[[Sequence[Tokens]], None] = lambda _: None,
    ) -> None:
        self._embed = embed
        self._observe = observe
        self._streams = streams
        self._shared = shared or Streams(streams)
        self._length_step = length_step
        self._max_batch_tokens = max_batch_tokens
        self._max_queued_tokens = max_queued_tokens
        self._interactive: Turns[Request] = Turns(max_batch_tokens)
        self._bulk: Turns[Request] = Turns(max_batch_tokens)
        self._running = {self._interactive: 0, self._bulk: 0}
        """Batches that are being embedded."""
        self._reserved_until = self._mixed_until = -math.inf
        self._last_owner: Hashable = None
        """Of the last request: several keys ask where the next is of another one, or others wait."""
        self._since_bulk = 0
        """Interactive batches since the last of the bulk work."""
        self._timer: asyncio.TimerHandle | None = None
        self._arrived = asyncio.Event()
        self._threads = ThreadPoolExecutor(streams, thread_name_prefix="engine")
        self._workers: set[asyncio.Task[None]] = set()
        """One for each stream, from the first request on."""
        self._live: set[asyncio.Future[Answer]] = set()
        self._tokens_per_second = 0.0
        """Of a stream."""
        self.queued_tokens = 0
        """Of texts that were not embedded yet."""
        self._claimed_tokens = 0
        """What of the queue's room is taken: see `check_room`."""
        self._claimed_by: Counter[Hashable] = Counter()
        """The same, by key."""
        self.failures: list[str] = []
        """What went wrong with the last batches, up to the last that went well."""
        self._closed = False

    @property
    def queued_texts(self) -> int:
        """Texts waiting, those included whose callers left and that will be skipped."""
        return self._interactive.texts + self._bulk.texts

    @property
    def waiting_tokens(self) -> Mapping[str, int]:
        """Tokens of texts waiting, of interactive and of bulk work."""
        return {"interactive": self._interactive.tokens, "bulk": self._bulk.tokens}

    @property
    def failing(self) -> bool:
        """Whether the last `FAILURES` batches all failed."""
        return len(self.failures) == FAILURES

    async def submit(self, texts: Sequence[Tokens], *, bulk: bool = False) -> Answer:
        """Vectors and norms of N texts, in their order; cancel it and what waits is never embedded.

        Raises:
            Overloaded: the queue has no room for all of them; none was admitted.
            Backend: the engine failed on one of them.
            Unhealthy: the batcher was closed before all of them were embedded.
        """
        self.check_open()
        lengths = [len(text) for text in texts]
        padded = [length + -length % self._length_step for length in lengths]
        tokens, claim = sum(lengths), sum(padded)
        self.check_room(claim)
        while len(self._workers) < self._streams:
            self._start()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        request = Request(
            texts=texts,
            lengths=lengths,
            padded=padded,
            future=future,
            bulk=bulk,
            missing=len(texts),
            waiting=tokens,
            claim=claim,
            owner=payer(),
        )
        (self._bulk if bulk else self._interactive).add(request, queued=self.queued_tokens)
        self.queued_tokens += tokens
        self._claim(request, claim)
        self._live.add(future)
        future.add_done_callback(lambda _: self._leave(request))
        if not bulk:
            self._reserved_until = perf_counter() + RESERVED_SECONDS
        if request.owner is not self._last_owner or len(self._claimed_by) > 1:
            self._last_owner, self._mixed_until = request.owner, perf_counter() + RESERVED_SECONDS
        self._arrived.set()
        return await future

    def check_open(self) -> None:
        """Refuse work that would never be done.

        Raises:
            Unhealthy: the batcher was closed.
        """
        if self._closed:
            raise going()

    def check_room(self, tokens: int, coming: Mapping[Caller | None, int] = NOBODY) -> None:
        """Refuse what would not be admitted, beside what is `coming` from each caller.

        An interactive request takes room for all of its tokens until it is answered: by Little's law requests then wait
        on average as long as the engine takes for what the queue may hold, in whatever order texts are embedded. If
        each text gave back its room by itself, many requests would wait for their last ones, and for a multiple of
        that. Bulk work, which nobody waits for, gives it back text by text. Room is measured in what the engine will
        compute, lengths rounded up to its step; who finds nobody is always admitted. One key takes no more than
        `KEY_SHARE` of the room, unless by a single request: the rest is for the others.

        Raises:
            Overloaded: the queue, or the share of the key, has no room for so many tokens.
        """
        caller = payer()
        queued, limit = self._claimed_tokens, self._max_queued_tokens
        more = sum(coming.values()) + tokens
        if queued and queued + more > limit:
            raise self._overloaded(f"{queued} tokens are queued and {more} more would exceed {limit}")
        own, share = self._claimed_by[caller] + coming.get(caller, 0), int(KEY_SHARE * limit)
        if caller and own and own + tokens > share:
            raise self._overloaded(
                f"{own} tokens of the key {caller.key.name!r} are queued and {tokens} more would exceed its {share}"
            )

    def _overloaded(self, why: str) -> Overloaded:
        return Overloaded(why, retry_after=self._seconds_to_clear())

    def _claim(self, request: Request, tokens: int) -> None:
        self._claimed_tokens += tokens
        self._claimed_by[request.owner] += tokens
        if not self._claimed_by[request.owner]:
            del self._claimed_by[request.owner]

    async def drain(self) -> None:
        """Return when everything admitted so far has been answered."""
        if self._live:
            await asyncio.wait(self._live)

    async def close(self) -> None:
        """Stop after the running batches; whoever still waits is told that the server is going away."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
        if workers := list(self._workers):
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
        for future in self._live:
            if not future.done():
                future.set_exception(going())
        await asyncio.to_thread(self._threads.shutdown)

    def _start(self) -> None:
        worker = asyncio.create_task(self._work())
        self._workers.add(worker)
        worker.add_done_callback(self._ended)

    def _ended(self, worker: asyncio.Task[None]) -> None:
        """Closed, or by a bug: then nobody waits in vain, and the next request starts another one."""
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()):
            log.error("the batcher's worker failed", exc_info=error)
            self._fail(self._live, Backend(f"the batcher failed: {error}"))

    async def _work(self) -> None:
        while True:
            if (self._interactive.empty and self._bulk.empty) or not await self._ran():
                self._arrived.clear()
                await self._arrived.wait()

    async def _ran(self) -> bool:
        """Whether there was a batch, once there was a stream for it."""
        await self._shared.take(self)
        try:
            lane, batch = self._next_batch()
            if not batch:
                return False
            alone = len(batch) == 1 and self._shared.busy == 1
            alone = alone and not (self._interactive.waiting or self._bulk.waiting)
            self._running[lane] += 1
            try:
                await self._run(batch, alone)
            finally:
                self._running[lane] -= 1
            return True
        finally:
            self._shared.give()

    async def _run(self, batch: Sequence[Item[Request]], alone: bool) -> None:
        tokens = [item.request.texts[item.row] for item in batch]
        started = perf_counter()
        for item in batch:
            item.request.begun = item.request.begun or started
        try:
            self._observe(tokens)
        except Exception as error:  # its callers hear of it and the next batch runs
            self._fail({item.request.future for item in batch}, error)
            return
        raised = await self._failed(batch, alone)
        if raised is None:
            self._measure(sum(map(len, tokens)), perf_counter() - started)
        elif not await self._isolated(batch, raised):
            self._count(raised)
            return
        if self.failing:
            log.info("the engine works again")
        self.failures.clear()

    async def _failed(self, batch: Sequence[Item[Request]], alone: bool = False) -> Exception | None:
        """Embed a batch and deliver its vectors; return what the engine raised."""
        embed = partial(self._embed, [item.request.texts[item.row] for item in batch], alone=alone)
        try:
            self._deliver(batch, await asyncio.get_running_loop().run_in_executor(self._threads, embed))
        except Exception as error:  # whatever an engine raises
            return error
        return None

    async def _isolated(self, batch: Sequence[Item[Request]], error: Exception) -> bool:
        """Run a failed batch again in halves, so that only requests which fail alone fail; tell whether any succeeded.

        The number of runs is bounded: where `CULPRITS` requests failed alone and none succeeded, the rest fails too.
        An engine that was failing before has a single try.
        """
        works, tries = False, 1 if self.failing else CULPRITS
        parts = [(list(batch), error)]
        while parts:
            part, error = parts.pop()
            requests = list(dict.fromkeys(item.request for item in part if not item.request.gone))
            if len(requests) < 2 or not (works or tries):
                self._tell({request.future for request in requests}, error)
                tries = max(0, tries - 1)
                continue
            for half in (requests[: len(requests) // 2], requests[len(requests) // 2 :]):
                items = [item for item in part if item.request in half]
                if failed := await self._failed(items):
                    parts.append((items, failed))
                else:
                    works = True
        return works

    def _next_batch(self) -> tuple[Turns[Request], list[Item[Request]]]:
        """Of interactive requests if any wait and bulk work has had its turn; of bulk work as far as it may."""
        lanes = [(self._interactive, self._interactive_batch), (self._bulk, self._bulk_batch)]
        for lane, taken in reversed(lanes) if self._since_bulk >= BULK_TURN else lanes:
            if batch := taken():
                self._since_bulk = self._since_bulk + 1 if lane is self._interactive else 0
                return lane, batch
        return self._interactive, []

    def _interactive_batch(self) -> list[Item[Request]]:
        budget = self._max_batch_tokens // (SMALL_PART if perf_counter() < self._mixed_until else 1)
        return self._interactive.next_batch(queued=self.queued_tokens, parts=self._idle, budget=budget)

    def _bulk_batch(self) -> list[Item[Request]]:
        reserved = self._reserved_until - perf_counter()
        if not self._bulk.waiting or reserved <= 0:
            return self._bulk.next_batch(queued=self.queued_tokens, parts=self._idle)
        if self._streams == 1:
            return self._bulk.next_batch(queued=self.queued_tokens, budget=self._max_batch_tokens // SMALL_PART)
        if self._running[self._bulk] < self._streams - 1:
            return self._bulk.next_batch(queued=self.queued_tokens, parts=max(1, self._idle - 1))
        self._timer = self._timer or asyncio.get_running_loop().call_later(reserved, self._wake)
        return []

    @property
    def _idle(self) -> int:
        return min(self._streams - sum(self._running.values()), self._shared.idle + 1)

    def _wake(self) -> None:
        """The stream that was kept free may do bulk work now, if nobody came."""
        self._timer = None
        self._arrived.set()

    def _deliver(self, batch: Sequence[Item[Request]], embedded: Embedded) -> None:
        for item, vector, norm in zip(batch, embedded.vectors, embedded.norms, strict=True):
            self.queued_tokens -= item.request.take(item.row, vector, norm)
            if item.request.bulk:
                given_back = min(item.length, item.request.claim)
                item.request.claim -= given_back
                self._claim(item.request, -given_back)

    def _fail(self, futures: Collection[asyncio.Future[Answer]], error: Exception) -> None:
        self._count(error)
        self._tell(futures, error)

    def _count(self, error: Exception) -> None:
        """Remember that a batch failed."""
        known, message = self.failing, _told(error).message
        self.failures = [*self.failures, message][-FAILURES:]
        if self.failing and not known:
            log.error("%d batches in a row failed, so the server is not ready: %s", FAILURES, message)

    def _tell(self, futures: Collection[asyncio.Future[Answer]], error: Exception) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(_told(error))

    def _leave(self, request: Request) -> None:
        """Answered, failed or cancelled: nothing of the request counts as queued any more."""
        self.queued_tokens -= request.waiting
        self._claim(request, -request.claim)
        request.waiting = request.claim = 0
        self._live.discard(request.future)

    def _measure(self, tokens: int, seconds: float) -> None:
        rate = tokens / max(seconds, 1e-9)
        self._tokens_per_second = 0.8 * self._tokens_per_second + 0.2 * rate if self._tokens_per_second else rate

    def _seconds_to_clear(self) -> int:
        if not self._tokens_per_second:
            return 1
        return min(60, max(1, math.ceil(self.queued_tokens / (self._tokens_per_second * self._streams))))


def _told(error: Exception) -> ServiceError:
    """What callers hear of an error."""
    return error if isinstance(error, ServiceError) else Backend(f"the engine failed: {error}")
