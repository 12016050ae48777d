"""Requests in, batches out: what arrived while the last batch ran is the next batch."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, chain, islice, repeat, zip_longest
from time import monotonic
from typing import NamedTuple

import numpy as np

from models.tokenizer import Tokens
from serving.errors import Backend, Overloaded, ServiceError, Unhealthy
from serving.ports import Embedded

log = logging.getLogger(__name__)

WINDOW = 512
"""Texts among which the companions of a batch's first are chosen."""
PADDING = 1.25
"""A batch computes at most this many tokens per useful one: at least one in 1.25 is a real token."""

FAILURES = 3
"""Batches in a row after which an engine counts as failing."""


@dataclass(eq=False, slots=True)
class _Request:
    texts: Sequence[Tokens]
    lengths: Sequence[int]
    future: asyncio.Future[Embedded]
    left: list[int]
    """Rows that were in no batch yet, longest first."""
    missing: int
    """Rows without a vector."""
    waiting: int
    """Tokens that count as queued."""
    patience: int
    """Tokens of requests behind it that may still be embedded before its next text."""
    answer: Embedded | None = None
    """Filled row by row, from the first batch on."""


class _Item(NamedTuple):
    request: _Request
    place: int
    """Of the request among those that wait."""
    row: int
    length: int


class Batcher:
    """One queue before one engine, whose `embed` runs in one thread of its own.

    Requests take turns, oldest first: one leads a batch with the longest of its texts, then goes behind those that came
    meanwhile. The rest of the batch are the nearest in length, of any request, so that little is padded. No timer: an
    idle engine starts at once. All texts of a request are admitted or none.

    The law of waiting: until the first text of a request is embedded, each request ahead of it leads at most one batch,
    and the tokens embedded are at most twice those that were queued when it came, and one batch. So a request, however
    large, delays a single text behind it by the batch that runs; and no stream of others, whatever their lengths, keeps
    a text waiting for ever. Between two batches of a request the same holds, counted from the first of them.
    """

    def __init__(
        self,
        embed: Callable[[Sequence[Tokens]], Embedded],
        *,
        max_batch_tokens: int,
        max_queued_tokens: int,
        observe: Callable[[Sequence[Tokens]], None] = lambda _: None,
    ) -> None:
        self._embed = embed
        self._observe = observe
        self._max_batch_tokens = max_batch_tokens
        self._max_queued_tokens = max_queued_tokens
        self._requests: list[_Request] = []
        """Those with texts that were in no batch yet, in the order of their turns."""
        self._leader: _Request | None = None
        """Of the last batch: first among the requests until the next batch is made."""
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._worker: asyncio.Task[None] | None = None
        self._live: set[asyncio.Future[Embedded]] = set()
        self._tokens_per_second = 0.0
        self.queued_tokens = 0
        self.failures: list[str] = []
        """What went wrong with the last batches, up to the last that went well."""
        self._closed = False

    @property
    def queued_texts(self) -> int:
        """Texts waiting, those included whose callers left and that will be skipped."""
        return sum(len(request.left) for request in self._requests)

    @property
    def failing(self) -> bool:
        """Whether the last `FAILURES` batches all failed."""
        return len(self.failures) == FAILURES

    async def submit(self, texts: Sequence[Tokens]) -> Embedded:
        """Vectors (N, D) and norms (N,) of N texts, in their order; cancel it and what waits is never embedded.

        Raises:
            Overloaded: the queue has no room for all of them; none was admitted.
            Backend: the engine failed on a batch that one of them was in.
            Unhealthy: the batcher was closed before all of them were embedded.
        """
        self.check_open()
        lengths = [len(text) for text in texts]
        tokens = sum(lengths)
        if self.queued_tokens + tokens > self._max_queued_tokens:
            raise Overloaded(
                f"{self.queued_tokens} tokens are queued and {tokens} more would exceed {self._max_queued_tokens}",
                retry_after=self._seconds_to_clear(),
            )
        self._worker = self._worker or self._start()
        longest_first = sorted(range(len(texts)), key=lengths.__getitem__, reverse=True)
        future: asyncio.Future[Embedded] = asyncio.get_running_loop().create_future()
        request = _Request(texts, lengths, future, longest_first, len(texts), tokens, self._patience())
        self.queued_tokens += tokens
        self._live.add(future)
        future.add_done_callback(lambda _: self._leave(request))
        self._requests.append(request)
        self._arrived.set()
        return await future

    def check_open(self) -> None:
        """Refuse work that would never be done.

        Raises:
            Unhealthy: the batcher was closed.
        """
        if self._closed:
            raise going()

    async def drain(self) -> None:
        """Return when everything admitted so far has been answered."""
        if self._live:
            await asyncio.wait(self._live)

    async def close(self) -> None:
        """Stop after the running batch; whoever still waits is told that the server is going away."""
        self._closed = True
        if self._worker:
            self._worker.cancel()
            await asyncio.wait([self._worker])
        for future in self._live:
            if not future.done():
                future.set_exception(going())
        await asyncio.to_thread(self._thread.shutdown)

    def _start(self) -> asyncio.Task[None]:
        worker = asyncio.create_task(self._work())
        worker.add_done_callback(self._ended)
        return worker

    def _ended(self, worker: asyncio.Task[None]) -> None:
        """Closed, or by a bug: then nobody waits in vain, and the next request starts another one."""
        if not worker.cancelled() and (error := worker.exception()):
            log.error("the batcher's worker failed", exc_info=error)
            self._worker = None
            self._fail(self._live, Backend(f"the batcher failed: {error}"))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            tokens = [item.request.texts[item.row] for item in batch]
            started = monotonic()
            try:
                self._observe(tokens)
                self._deliver(batch, await loop.run_in_executor(self._thread, self._embed, tokens))
            except Exception as error:  # whatever an engine raises, its callers hear of it and the next batch runs
                self._fail({item.request.future for item in batch}, error)
            else:
                self.failures.clear()
                self._measure(sum(map(len, tokens)), monotonic() - started)

    def _next_batch(self) -> list[_Item]:
        """A text of the request whose turn it is, and those nearest to its length that fit the budget."""
        self._requests = [request for request in self._requests if request.left and not request.future.done()]
        if self._requests and self._requests[0] is self._leader:
            self._requests.append(self._requests.pop(0))
        if not self._requests:
            self._leader = None
            return []
        self._leader = self._requests[0]
        batch = self._chosen(self._window())
        self._take(batch)
        return batch

    def _window(self) -> list[_Item]:
        """One text of each request in turn, a request's longest first."""
        each = (
            zip(repeat(one), repeat(place), one.left, map(one.lengths.__getitem__, one.left))
            for place, one in enumerate(self._requests[:WINDOW])
        )
        turns = chain.from_iterable(zip_longest(*each))
        return [_Item._make(one) for one in islice(filter(None, turns), WINDOW)]

    def _chosen(self, window: Sequence[_Item]) -> list[_Item]:
        """The first of `window`, and the nearest to its length while budget, padding and patience allow."""
        first, *others = window
        budget = self._max_batch_tokens
        # at each place, of the least patient that would be passed: all before it but the leader
        patience = [budget, *accumulate((one.patience for one in self._requests[1:WINDOW]), min, initial=budget)]
        longest = useful = first.length
        chosen = [first]
        for item in sorted(others, key=lambda one: abs(one.length - first.length)):
            if longest * (len(chosen) + 1) > budget:
                break
            padded, total = max(longest, item.length) * (len(chosen) + 1), useful + item.length
            if padded <= budget and padded <= PADDING * total and total <= patience[item.place]:
                longest, useful = max(longest, item.length), total
                chosen.append(item)
        return chosen

    def _take(self, batch: Sequence[_Item]) -> None:
        rows: dict[int, set[int]] = {}
        for item in batch:
            rows.setdefault(item.place, set()).add(item.row)
        passing = 0
        for place in range(max(rows), -1, -1):
            request = self._requests[place]
            if place in rows:
                request.left = [row for row in request.left if row not in rows[place]]
                request.patience = self._patience()
                passing += sum(request.lengths[row] for row in rows[place])
            else:
                request.patience -= passing

    def _patience(self) -> int:
        """As much as is ahead of whoever comes now, so that the law holds; and a batch, for the queue that is empty."""
        return self.queued_tokens + self._max_batch_tokens

    def _deliver(self, batch: Sequence[_Item], embedded: Embedded) -> None:
        for item, vector, norm in zip(batch, embedded.vectors, embedded.norms, strict=True):
            request = item.request
            request.answer = request.answer or _blank(len(request.texts), embedded)
            request.answer.vectors[item.row] = vector
            request.answer.norms[item.row] = norm
            request.missing -= 1
            done = min(item.length, request.waiting)
            request.waiting -= done
            self.queued_tokens -= done
            if not request.missing and not request.future.done():
                request.future.set_result(request.answer)

    def _fail(self, futures: Collection[asyncio.Future[Embedded]], error: Exception) -> None:
        told = error if isinstance(error, ServiceError) else Backend(f"the engine failed: {error}")
        self.failures = [*self.failures, told.message][-FAILURES:]
        for future in futures:
            if not future.done():
                future.set_exception(told)

    def _leave(self, request: _Request) -> None:
        """Answered, failed or cancelled: nothing of the request counts as queued any more."""
        self.queued_tokens -= request.waiting
        request.waiting = 0
        self._live.discard(request.future)

    def _measure(self, tokens: int, seconds: float) -> None:
        rate = tokens / max(seconds, 1e-9)
        self._tokens_per_second = 0.8 * self._tokens_per_second + 0.2 * rate if self._tokens_per_second else rate

    def _seconds_to_clear(self) -> int:
        if not self._tokens_per_second:
            return 1
        return min(60, max(1, math.ceil(self.queued_tokens / self._tokens_per_second)))


def _blank(texts: int, like: Embedded) -> Embedded:
    vectors, norms = like
    return Embedded(np.empty((texts, vectors.shape[1]), vectors.dtype), np.empty(texts, norms.dtype))


def going() -> Unhealthy:
    """What whoever waits is told when the server goes."""
    return Unhealthy("the server is shutting down", retry_after=1)
