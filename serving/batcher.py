"""Requests in, batches out: what arrived while the last batch ran is the next batch."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic

import numpy as np

from models.tokenizer import Tokens
from serving.errors import Backend, Overloaded, ServiceError, Unhealthy
from serving.ports import Embedded

WINDOW = 512
"""Items, oldest first, among which the companions of the oldest are chosen."""
PADDING = 1.25
"""A batch computes at most this many tokens per useful one: at least one in 1.25 is a real token."""


@dataclass(eq=False, slots=True)
class _Request:
    future: asyncio.Future[list[Embedded]]
    rows: list[Embedded | None]
    missing: int
    waiting: int
    """Tokens that count as queued."""


@dataclass(eq=False, slots=True)
class _Item:
    request: _Request
    row: int
    tokens: Tokens


class Batcher:
    """One queue before one engine, whose `embed` runs in one thread of its own.

    The oldest item always goes first; its companions are the nearest in length, so that little is padded.
    All texts of a request are admitted or none. No timer: an idle engine starts at once.
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
        self._queue: deque[_Item] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._worker: asyncio.Task[None] | None = None
        self._live: set[asyncio.Future[list[Embedded]]] = set()
        self._tokens_per_second = 0.0
        self.queued_tokens = 0
        self._closed = False

    @property
    def queued_texts(self) -> int:
        """Texts waiting, those included whose callers left and that will be skipped."""
        return len(self._queue)

    async def submit(self, texts: Sequence[Tokens]) -> Embedded:
        """Vectors (N, D) and norms (N,) of N texts, in their order; cancel it and what waits is never embedded.

        Raises:
            Overloaded: the queue has no room for all of them; none was admitted.
            Backend: the engine failed on a batch that one of them was in.
            Unhealthy: the batcher was closed before all of them were embedded.
        """
        self.check_open()
        tokens = sum(map(len, texts))
        if self.queued_tokens + tokens > self._max_queued_tokens:
            raise Overloaded(
                f"{self.queued_tokens} tokens are queued and {tokens} more would exceed {self._max_queued_tokens}",
                retry_after=self._seconds_to_clear(),
            )
        self._worker = self._worker or asyncio.create_task(self._work())
        request = _Request(asyncio.get_running_loop().create_future(), [None] * len(texts), len(texts), tokens)
        self.queued_tokens += tokens
        self._live.add(request.future)
        request.future.add_done_callback(lambda _: self._leave(request))
        longest_first = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        self._queue.extend(_Item(request, row, texts[row]) for row in longest_first)
        self._arrived.set()
        rows = await request.future
        return Embedded(np.stack([row.vectors for row in rows]), np.stack([row.norms for row in rows]))

    def check_open(self) -> None:
        """Refuse work that would never be done.

        Raises:
            Unhealthy: the batcher was closed.
        """
        if self._closed:
            raise _going()

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
                future.set_exception(_going())
        await asyncio.to_thread(self._thread.shutdown)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            tokens = [item.tokens for item in batch]
            self._observe(tokens)
            started = monotonic()
            try:
                self._deliver(batch, await loop.run_in_executor(self._thread, self._embed, tokens))
            except Exception as error:  # whatever an engine raises, its callers hear of it and the next batch runs
                self._fail(batch, error)
            else:
                self._measure(sum(map(len, tokens)), monotonic() - started)

    def _next_batch(self) -> list[_Item]:
        """The oldest item whose caller is still there, and those nearest to its length that fit the budget."""
        window: list[_Item] = []
        while self._queue and len(window) < WINDOW:
            item = self._queue.popleft()
            if not item.request.future.done():
                window.append(item)
        if not window:
            return []
        chosen = {0, *self._companions(window)}
        self._queue.extendleft(item for i, item in reversed(list(enumerate(window))) if i not in chosen)
        return [window[i] for i in sorted(chosen)]

    def _companions(self, window: Sequence[_Item]) -> list[int]:
        lengths = [len(item.tokens) for item in window]
        longest = useful = lengths[0]
        chosen: list[int] = []
        for i in sorted(range(1, len(window)), key=lambda i: abs(lengths[i] - lengths[0])):
            padded = max(longest, lengths[i]) * (len(chosen) + 2)
            if padded <= self._max_batch_tokens and padded <= PADDING * (useful + lengths[i]):
                longest, useful = max(longest, lengths[i]), useful + lengths[i]
                chosen.append(i)
        return chosen

    def _deliver(self, batch: Sequence[_Item], embedded: Embedded) -> None:
        for item, vector, norm in zip(batch, embedded.vectors, embedded.norms, strict=True):
            request = item.request
            request.rows[item.row] = Embedded(vector, norm)
            request.missing -= 1
            done = min(len(item.tokens), request.waiting)
            request.waiting -= done
            self.queued_tokens -= done
            if not request.missing and not request.future.done():
                request.future.set_result([row for row in request.rows if row is not None])

    def _fail(self, batch: Sequence[_Item], error: Exception) -> None:
        told = error if isinstance(error, ServiceError) else Backend(f"the engine failed: {error}")
        for future in {item.request.future for item in batch}:
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


def _going() -> Unhealthy:
    return Unhealthy("the server is shutting down", retry_after=1)
