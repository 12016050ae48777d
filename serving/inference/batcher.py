"""Dynamic batching: requests that arrive while the engine is busy form the next batch.

`FairQueue` chooses the texts of each batch. `EngineSlots` decides which encoder runs its next batch.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter
from typing import Protocol

from models.bundle.tokenizer import Tokens
from serving.errors import Backend, Overloaded, ServiceError, shutting_down
from serving.inference.engine import Embedded, Mixed
from serving.inference.fair_queue import Answer, EngineSlots, FairQueue, Item, Request
from serving.operations.context import CONNECTION
from serving.operations.limits import Caller, current_caller

log = logging.getLogger(__name__)
FAILURES = 3
"""Consecutive failed batches after which an engine counts as failing."""
RESERVED_SECONDS = 1.0
"""Duration of three restrictions, in seconds. After an interactive request, bulk work leaves one of several streams
free. After requests of different keys, interactive batches are small; see `SMALL_PART`. After requests of different
connections, no batch runs on the event loop; see `ON_THE_LOOP`."""
BULK_TURN = 8
"""Number of consecutive interactive batches after which waiting bulk work gets the next batch."""
CULPRITS = 8
"""Maximum number of requests that fail one by one while a failed batch is retried. If this number is reached and no
request has succeeded, the engine is assumed to be broken. The other requests then fail without a retry."""
KEY_SHARE = 0.75
"""Maximum share of the queue's token limit that the requests of one API key may use. If a key has
no other request in the queue, its request may exceed this share."""
ON_THE_LOOP = 0.005
"""Maximum estimated seconds of a batch that runs on the event loop instead of in a thread. A thread costs 0.2 ms, to
start the batch and to wake the event loop afterwards. Embedding a short text takes ten times as long. An engine that
hangs on the event loop blocks every request, including `/livez`. An orchestrator then restarts the server."""
NOBODY: Mapping[Caller | None, int] = {}
SMALL_PART = 8
"""Divisor of a batch's token budget, to shorten the wait of other requests. It always applies to a batch in the extra
thread (see `Batcher`). It applies to interactive batches for `RESERVED_SECONDS` after requests of different keys. If
the engine has a single stream, it also applies to bulk batches for `RESERVED_SECONDS` after an interactive request."""


class Embed(Protocol):
    """Function that embeds a batch, as `Engine.embed` does."""

    def __call__(self, batch: Sequence[Tokens], /, *, alone: bool) -> Embedded | Mixed: ...


class Batcher:
    """Queue of texts for one engine.

    An engine with several streams embeds one batch per stream at the same time. `embed` runs in one thread for each
    stream. An idle stream starts the next batch at once, without a timer. Several idle streams share the waiting texts.
    A request is admitted with all its texts, or it is refused. Interactive requests and bulk work each have their own
    `FairQueue`. Interactive requests are embedded first. For `RESERVED_SECONDS` after an interactive request, bulk work
    leaves one of several streams free. If interactive requests never stop, bulk work gets one batch after every
    `BULK_TURN` interactive batches. If several engines share the streams of a machine, their batchers must get the same
    `EngineSlots` in the argument `shared`.

    If there is only one caller, a single short text is embedded on the event loop; see `ON_THE_LOOP`. With several
    callers, the event loop must stay free to read the requests that form the next batch.

    A running batch can't be stopped, and a long text takes many times as long as a short text. With `overtaking`, an
    interactive batch may therefore run in an extra thread while all streams are busy. This batch has only texts of API
    keys that have no text in a running batch. `Request.owner` is the API key of a request.
    """

    def __init__(
        self,
        embed: Embed,
        *,
        max_batch_tokens: int,
        max_queued_tokens: int,
        streams: int = 1,
        shared: EngineSlots | None = None,
        length_step: int = 1,
        overtaking: bool = False,
        observe: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        self._embed = embed
        self._observe = observe
        self._streams = streams
        self._shared = shared or EngineSlots(streams)
        self._length_step = length_step
        self._overtaking = overtaking
        self._max_batch_tokens = max_batch_tokens
        self._max_queued_tokens = max_queued_tokens
        self._interactive: FairQueue = FairQueue(max_batch_tokens)
        self._bulk: FairQueue = FairQueue(max_batch_tokens)
        self._running = {self._interactive: 0, self._bulk: 0}
        """Number of running batches from each queue."""
        self._reserved_until = self._mixed_until = -math.inf
        self._last_owner: Hashable = None
        """Owner of the latest request. If the owner changes, interactive batches become small; see `SMALL_PART`."""
        self._since_bulk = 0
        """Number of interactive batches since the last bulk batch."""
        self._timer: asyncio.TimerHandle | None = None
        self._arrived = asyncio.Event()
        self._threads = ThreadPoolExecutor(streams + overtaking, thread_name_prefix="engine")
        self._workers: set[asyncio.Task[None]] = set()
        """One task for each stream. The first request starts the tasks."""
        self._beside: set[asyncio.Task[None]] = set()
        """The task of a batch that runs in the extra thread. Empty if there is no such batch."""
        self._live: set[asyncio.Future[Answer]] = set()
        self._tokens_per_second = 0.0
        """Measured throughput of one stream."""
        self.queued_tokens = 0
        """Tokens of texts that are not embedded yet."""
        self._claimed_tokens = 0
        """Padded tokens of all requests that count towards the queue's limit. See `check_room`."""
        self._claimed_by: Counter[Hashable] = Counter()
        """Padded tokens that count towards the queue's limit, by API key."""
        self.failures: list[str] = []
        """Messages of the failed batches since the last success."""
        self._closed = False

    @property
    def queued_texts(self) -> int:
        """Number of waiting texts. Texts whose callers have left are counted, although these texts will be skipped."""
        return self._interactive.texts + self._bulk.texts

    @property
    def waiting_tokens(self) -> Mapping[str, int]:
        """Number of waiting tokens by priority, with the keys `interactive` and `bulk`."""
        return {"interactive": self._interactive.tokens, "bulk": self._bulk.tokens}

    @property
    def failing(self) -> bool:
        """True if the last `FAILURES` batches all failed."""
        return len(self.failures) == FAILURES

    async def submit(self, texts: Sequence[Tokens], *, bulk: bool = False) -> Answer:
        """Embed N texts, and return their vectors and norms in the same order.

        With `bulk`, the texts may wait for interactive requests. If the caller is cancelled, its waiting texts are
        never embedded.

        Raises:
            Overloaded: the queue, or the share of the API key, has no room for all texts. No text was admitted.
            Backend: the engine failed on a text.
            Unhealthy: the batcher was closed before all texts were embedded.
        """
        if self._closed:
            raise shutting_down()
        caller, connection = current_caller(), CONNECTION.get()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        request = Request(texts, future, length_step=self._length_step, bulk=bulk, owner=caller)
        self.check_room(request.claim, caller)
        while len(self._workers) < self._streams:
            self._start()
        if connection != self._shared.connection:
            self._shared.connection, self._shared.several_until = connection, perf_counter() + RESERVED_SECONDS
        brief = not bulk and self._is_brief(request)
        if not brief:
            (self._bulk if bulk else self._interactive).add(request, queued=self.queued_tokens)
        self.queued_tokens += request.queued
        self._claim(request, request.claim)
        self._live.add(future)
        future.add_done_callback(lambda _: self._release(request))
        if not bulk:
            self._reserved_until = perf_counter() + RESERVED_SECONDS
        if request.owner is not self._last_owner or len(self._claimed_by) > 1:
            self._last_owner, self._mixed_until = request.owner, perf_counter() + RESERVED_SECONDS
        if brief:
            await self._run_on_loop(request)
        else:
            self._arrived.set()
            self._overtake()
        return await future

    def check_room(self, tokens: int, caller: Caller | None, coming: Mapping[Caller | None, int] = NOBODY) -> None:
        """Raise `Overloaded` if the queue has no room for `tokens` additional tokens of `caller`.

        `coming` maps callers to the numbers of tokens that these callers will soon submit. The queue's limit is a
        number of tokens. The length of each text is rounded up to a multiple of the engine's `length_step`.

        An interactive request counts with all its tokens until it is answered. By Little's law, the mean wait is then
        at most the time that the engine needs for a full queue, in whatever order the texts are embedded. If each
        embedded text made room at once, more requests would be admitted. Many of them would wait for their last texts,
        and the mean wait would be several times as long. Bulk work has no limit on its wait, so each embedded text of
        bulk work makes room.

        An empty queue admits any request. A key with several requests gets at most `KEY_SHARE` of the room, so that
        other keys find room.
        """
        queued, limit = self._claimed_tokens, self._max_queued_tokens
        more = sum(coming.values()) + tokens
        if queued and queued + more > limit:
            raise self._overloaded(f"{queued} tokens are queued, and {more} more would exceed the limit of {limit}")
        own, share = self._claimed_by[caller] + coming.get(caller, 0), int(KEY_SHARE * limit)
        if caller and own and own + tokens > share:
            raise self._overloaded(
                f"{own} tokens of the key {caller.key.name!r} are queued, and {tokens} more would exceed the "
                f"key's limit of {share}"
            )

    def _overloaded(self, why: str) -> Overloaded:
        speed = self._tokens_per_second * self._streams
        seconds = min(60, max(1, math.ceil(self.queued_tokens / speed))) if speed else 1
        return Overloaded(why, retry_after=seconds)

    def _claim(self, request: Request, tokens: int) -> None:
        self._claimed_tokens += tokens
        self._claimed_by[request.owner] += tokens
        if not self._claimed_by[request.owner]:
            del self._claimed_by[request.owner]

    async def close(self) -> None:
        """Wait until the running batches have ended, then stop. Waiting requests fail with `Unhealthy`."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
        if workers := [*self._workers, *self._beside]:
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
        for future in self._live:
            if not future.done():
                future.set_exception(shutting_down())
        await asyncio.to_thread(self._threads.shutdown)

    def _start(self) -> None:
        worker = asyncio.create_task(self._work())
        self._workers.add(worker)
        worker.add_done_callback(self._on_worker_end)

    def _on_worker_end(self, worker: asyncio.Task[None]) -> None:
        """If the worker ended because of a bug, fail all requests. The next request starts a new worker."""
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()):
            log.error("the batcher's worker failed", exc_info=error)
            self._fail(self._live, Backend(f"the batcher failed: {error}"))

    async def _work(self) -> None:
        while True:
            if (self._interactive.empty and self._bulk.empty) or not await self._run_next():
                self._arrived.clear()
                await self._arrived.wait()

    async def _run_next(self) -> bool:
        """Wait for a free stream, and run the next batch on it. Return False if there was no batch to run."""
        await self._shared.take(self)
        try:
            queue, batch = self._next_batch()
            if not batch:
                return False
            alone = self._streams > 1 and len(batch) == 1 and self._shared.busy == 1
            alone = alone and not (self._shared.overtaken or self._interactive.waiting or self._bulk.waiting)
            self._running[queue] += 1
            try:
                with self._counted(batch):
                    await self._run(batch, alone)
            finally:
                self._running[queue] -= 1
            return True
        finally:
            self._shared.give()

    def _is_brief(self, request: Request) -> bool:
        """Return whether a request may run on the event loop.

        The request must have a single short text, and no other text may be waiting or running. Its HTTP
        connection must have been the only one with requests for at least `RESERVED_SECONDS`.
        """
        only = self._shared.connection is not None and perf_counter() >= self._shared.several_until
        idle = self._interactive.empty and self._bulk.empty and not (self._shared.busy or self._shared.overtaken)
        single = len(request.texts) == 1 and request.padded[0] <= ON_THE_LOOP * self._tokens_per_second
        return only and idle and single

    async def _run_on_loop(self, request: Request) -> None:
        """Embed the only text of a request on the event loop."""
        await self._shared.take(self)
        try:
            await self._run([Item(request, 0, 0, request.padded[0])], alone=self._streams > 1, on_loop=True)
        except BaseException as error:
            self._set_error([request.future], Backend(f"the batcher failed: {error}"))
            raise
        finally:
            self._shared.give()
            self._release(request)  # now, because the next request may come before the callback of the future

    def _overtake(self) -> None:
        """Start an interactive batch in the thread that `overtaking` adds, if all streams are busy.

        If any encoder with the same `EngineSlots` already runs such an extra batch, nothing happens. The batch has only
        texts of API keys that have no text in a running batch.
        """
        if not self._overtaking or self._closed or self._shared.idle or self._shared.overtaken:
            return
        budget, running = self._max_batch_tokens // SMALL_PART, self._shared.owners
        if not (batch := self._interactive.next_batch(queued=self.queued_tokens, budget=budget, besides=running)):
            return
        self._shared.overtaken = True
        task = asyncio.create_task(self._run_beside(batch))
        self._beside.add(task)
        task.add_done_callback(self._on_overtaken)

    async def _run_beside(self, batch: Sequence[Item]) -> None:
        with self._counted(batch):
            await self._run(batch, alone=True)

    def _counted(self, batch: Sequence[Item]) -> AbstractContextManager[None]:
        """Return a context manager that registers the owners (API keys) of the batch's texts while the batch runs.

        `_overtake` starts no batch with texts of registered owners. If the batcher was created without `overtaking`,
        the context manager does nothing.
        """
        return self._shared.running(item.request.owner for item in batch) if self._overtaking else nullcontext()

    def _on_overtaken(self, task: asyncio.Task[None]) -> None:
        self._shared.overtaken = False
        self._beside.discard(task)
        self._on_worker_end(task)
        self._overtake()

    async def _run(self, batch: Sequence[Item], alone: bool, *, on_loop: bool = False) -> None:
        lengths = [item.request.lengths[item.row] for item in batch]
        started = perf_counter()
        for item in batch:
            item.request.begun = item.request.begun or started
        try:
            self._observe(lengths)
        except Exception as error:  # pass the error to the callers, so that the next batch can run
            self._fail({item.request.future for item in batch}, error)
            return
        raised = await self._try_batch(batch, alone, on_loop=on_loop)
        if raised is None:
            self._measure(sum(lengths), perf_counter() - started)
        elif not await self._retry_in_halves(batch, raised):
            self._record_failure(raised)
            return
        if self.failing:
            log.info("the engine works again")
        self.failures.clear()

    async def _try_batch(
        self, batch: Sequence[Item], alone: bool = False, *, on_loop: bool = False
    ) -> Exception | None:
        """Embed a batch in a thread, or with `on_loop` on the event loop, and store the vectors in its requests.

        Return the engine's exception, or None.
        """
        embed = partial(self._embed, [item.request.texts[item.row] for item in batch], alone=alone)
        try:
            in_thread = asyncio.get_running_loop().run_in_executor
            self._deliver(batch, embed() if on_loop else await in_thread(self._threads, embed))
        except Exception as error:  # an engine may raise exceptions of any type
            return error
        return None

    async def _retry_in_halves(self, batch: Sequence[Item], error: Exception) -> bool:
        """Retry a failed batch in halves until only faulty requests fail. Return whether any request succeeded.

        After `CULPRITS` separate requests have failed and none has succeeded, the other requests fail without a retry.
        If the engine was already failing before this batch, this happens after one failed request.
        """
        works, tries = False, 1 if self.failing else CULPRITS
        parts = [(list(batch), error)]
        while parts:
            part, error = parts.pop()
            requests = list(dict.fromkeys(item.request for item in part if not item.request.gone))
            if len(requests) < 2 or not (works or tries):
                self._set_error({request.future for request in requests}, error)
                tries = max(0, tries - 1)
                continue
            for half in (requests[: len(requests) // 2], requests[len(requests) // 2 :]):
                items = [item for item in part if item.request in half]
                if failed := await self._try_batch(items):
                    parts.append((items, failed))
                else:
                    works = True
        return works

    def _next_batch(self) -> tuple[FairQueue, list[Item]]:
        """Choose the next batch. Return its queue and its texts. Without a batch to run, the list of texts is empty.

        Interactive requests come first. After `BULK_TURN` consecutive interactive batches, bulk work comes first.
        """
        queues = [(self._interactive, self._interactive_batch), (self._bulk, self._bulk_batch)]
        for queue, taken in reversed(queues) if self._since_bulk >= BULK_TURN else queues:
            if batch := taken():
                self._since_bulk = self._since_bulk + 1 if queue is self._interactive else 0
                return queue, batch
        return self._interactive, []

    def _interactive_batch(self) -> list[Item]:
        budget = self._max_batch_tokens // (SMALL_PART if perf_counter() < self._mixed_until else 1)
        return self._interactive.next_batch(queued=self.queued_tokens, parts=self._idle, budget=budget)

    def _bulk_batch(self) -> list[Item]:
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
        """Wake a worker for bulk work, because one stream is no longer reserved for interactive requests."""
        self._timer = None
        self._arrived.set()

    def _deliver(self, batch: Sequence[Item], embedded: Embedded | Mixed) -> None:
        for item, vector, norm in zip(batch, embedded.vectors, embedded.norms, strict=True):
            self.queued_tokens -= item.request.take(item.row, vector, norm)
            if item.request.bulk:
                given_back = min(item.length, item.request.claim)
                item.request.claim -= given_back
                self._claim(item.request, -given_back)

    def _fail(self, futures: Collection[asyncio.Future[Answer]], error: Exception) -> None:
        self._record_failure(error)
        self._set_error(futures, error)

    def _record_failure(self, error: Exception) -> None:
        known, message = self.failing, _service_error(error).message
        self.failures = [*self.failures, message][-FAILURES:]
        if self.failing and not known:
            log.error("%d batches in a row failed, so the server is not ready: %s", FAILURES, message)

    def _set_error(self, futures: Collection[asyncio.Future[Answer]], error: Exception) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(_service_error(error))

    def _release(self, request: Request) -> None:
        """Stop counting a request towards the queue's limit. The request was answered, has failed or was cancelled."""
        self.queued_tokens -= request.queued
        self._claim(request, -request.claim)
        request.queued = request.claim = 0
        self._live.discard(request.future)

    def _measure(self, tokens: int, seconds: float) -> None:
        rate = tokens / max(seconds, 1e-9)
        self._tokens_per_second = 0.8 * self._tokens_per_second + 0.2 * rate if self._tokens_per_second else rate


def _service_error(error: Exception) -> ServiceError:
    """Convert an engine's exception to an error for callers."""
    return error if isinstance(error, ServiceError) else Backend(f"the engine failed: {error}")
