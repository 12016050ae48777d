"""Fair scheduling: which waiting requests get into the next batch, and which encoder gets the next free stream.

This module uses no threads and no clock.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, count, islice
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from models.bundle.tokenizer import Tokens
from models.runtimes.base import Floats
from serving.inference.engine import EachToken, Embedded, places

WINDOW = 512
"""Maximum number of waiting texts that are considered for one batch."""
TEXTS_IN_TURN = 32
"""Maximum number of texts that a request adds to the window before the next request has its turn. Requests often have
32 texts."""
PADDING = 1.25
"""Maximum ratio of padded tokens to real tokens in a batch."""


class Answer(NamedTuple):
    """Vectors and norms of a request's texts."""

    vectors: Floats
    """(N, D) unit vectors of N texts. For `EachToken` texts, (T, H) vectors of all T tokens, not normalised."""
    norms: Floats
    """Lengths of the vectors before normalisation, of shape (N,) or (T,)."""
    begun: float
    """Time at which the engine started to embed the request's first text, in seconds of `time.perf_counter`."""


class Request:
    """Texts of one caller. They may be embedded in several batches."""

    def __init__(
        self,
        texts: Sequence[Tokens],
        future: asyncio.Future[Answer],
        *,
        length_step: int = 1,
        bulk: bool = False,
        owner: Hashable = None,
    ) -> None:
        self.texts, self.future, self.bulk = texts, future, bulk
        self.owner = owner
        """Owner of the request. The owners take turns, however many requests each owner has."""
        self.lengths = [len(text.ids) for text in texts]
        """Number of tokens of each text."""
        self.padded = [length + -length % length_step for length in self.lengths]
        """Number of tokens of each text, rounded up to the engine's `length_step`."""
        self.left = sorted(range(len(texts)), key=self.lengths.__getitem__, reverse=True)
        """Indices of the waiting texts, longest first."""
        self.tokens_left = sum(self.lengths)
        """Total tokens of the waiting texts."""
        self.patience = 0
        """Number of tokens of later requests that may still be embedded before this request's next text."""
        self.new = True
        """True until a batch contains a text of this request."""
        self.latest_batch = 0
        """Limit on the wait of a new request. When the owner has led this number of batches (see `_Line.batches`), the
        owner's next batch must contain a text of this request."""
        self.taken = 0
        """Tokens of this request in the batches that it has led in its current turn. See `FairQueue`."""
        self.queued = self.tokens_left
        """Number of this request's tokens that `Batcher.queued_tokens` still includes."""
        self.claim = sum(self.padded)
        """Number of this request's padded tokens that count towards the queue's limit. See `Batcher.check_room`."""
        self.begun: float | None = None
        self._missing = len(texts)
        """Number of texts without a vector."""
        tokenwise = bool(texts) and isinstance(texts[0], EachToken)
        self._places: Sequence[int | slice] = places(texts) if tokenwise else range(len(texts))
        """Index of each text's vector in the answer. For token vectors, slice of the text's vectors in the answer."""
        self._answer: Embedded | None = None
        """Vectors and norms of the texts that are already embedded. None before the first batch."""

    @property
    def gone(self) -> bool:
        """True if the request was answered, has failed, or was cancelled by its caller."""
        return self.future.done()

    def take(self, row: int, vector: Floats, norm: Floats | np.float32) -> int:
        """Store the vector (D,) of one text, or the vectors (L, H) of its tokens, with their norms.

        `row` is the index of the text in the request. When no text of the request lacks a vector any more, complete the
        request's future with the answer. Return the number of tokens by which `Batcher.queued_tokens` decreases.
        """
        if self._answer is None:
            last = self._places[-1]
            height = last.stop if isinstance(last, slice) else last + 1
            self._answer = Embedded(np.empty((height, vector.shape[-1]), vector.dtype), np.empty(height, norm.dtype))
        place = self._places[row]
        self._answer.vectors[place] = vector
        self._answer.norms[place] = norm
        self._missing -= 1
        done = min(self.lengths[row], self.queued)
        self.queued -= done
        if not self._missing and not self.gone:
            self.future.set_result(Answer(*self._answer, begun=self.begun or 0.0))
        return done


class Item(NamedTuple):
    """A text in a batch."""

    request: Request
    place: int
    """Index of the request in the queue's list of requests."""
    row: int
    length: int
    """Number of tokens of the text, rounded up to the engine's `length_step`."""


@dataclass(eq=False, slots=True)
class _Line:
    """Scheduling state of one owner of requests, which is an API key."""

    batches: int = 0
    """Number of batches led by requests of this owner."""
    last: int = -1
    """Sequence number of the owner's last batch, counted over the batches of all owners."""
    leader: Request | None = None
    """Request that led the owner's last batch."""


class FairQueue:
    """Fair scheduler of texts. The owner that has waited longest since its last batch leads the next batch.

    The owner of a request is its API key. An owner leads a batch with one of its requests. The batch starts with this
    request's longest waiting text. The batch is filled with texts of nearly the same length from any request, so that
    there is little padding. Among texts of the same length, the batch prefers texts of the requests whose turn is next.

    Requests of one owner take turns, oldest first. In its turn, a request may lead several batches. The turn ends when
    the request's own tokens in these batches would fill one batch, including the allowed padding. The request then
    moves to the end of its owner's requests.

    The wait for the first text of a request R has two bounds. For the first bound, let n be the number of requests of
    R's owner that are in the queue when R arrives, without the request that led the owner's last batch. The owner leads
    at most n batches before the batch with the first text of R. Before each of these n + 1 batches, every other owner
    leads at most one batch. So each earlier request of the owner, however large, adds at most one batch of the owner to
    the wait.

    The second bound holds if all requests have the same owner. Let Q be the number of tokens that were queued when R
    arrived. The batches before the first text of R then have at most 2 Q tokens, plus the tokens of one full batch. No
    sequence of requests delays a text forever.

    To keep the first bound, a new request may lead a batch out of turn. After a batch that was led in turn, only
    requests that arrived before the end of this batch may lead out of turn. After the batches of these requests, a
    batch is led in turn again.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._requests: list[Request] = []
        """Requests with waiting texts, in the order of their turns."""
        self._lines: dict[Hashable, _Line] = {}
        """Scheduling state of each owner with waiting requests. The state of an idle owner is kept as long as its last
        batch is more recent than the last batch of a waiting owner."""
        self._batches = 0
        """Number of batches that the queue has returned."""

    @property
    def texts(self) -> int:
        """Number of waiting texts. Texts whose callers have left are counted, although these texts will be skipped."""
        return sum(len(request.left) for request in self._requests)

    @property
    def tokens(self) -> int:
        """Number of tokens of the waiting texts."""
        return sum(request.tokens_left for request in self._requests)

    @property
    def empty(self) -> bool:
        """True if the queue has no request. Requests whose caller has left count as requests."""
        return not self._requests

    @property
    def waiting(self) -> bool:
        """True if a text is waiting whose caller has not left."""
        return any(request.left and not request.gone for request in self._requests)

    def add(self, request: Request, *, queued: int) -> None:
        """Add a request at the end of the queue.

        `queued` is the number of tokens that were queued before this request, including those of running batches.
        """
        request.patience = self._patience(queued)
        line, own = self._lines.setdefault(request.owner, _Line()), self._places(request.owner)
        led = any(self._requests[place] is line.leader for place in own)
        request.latest_batch = line.batches + len(own) - led
        self._requests.append(request)

    def next_batch(
        self, *, queued: int, parts: int = 1, budget: int | None = None, besides: Container[Hashable] = ()
    ) -> list[Item]:
        """Choose a batch: a text of the request whose turn is next, and texts of similar length.

        Requests whose owner is in `besides` are passed over: the batch has none of their texts, and their owner keeps
        its turn. If no text may be chosen, the batch is empty.

        The batch has at most `budget` tokens. Without `budget`, it has at most the tokens of a full batch. If the
        waiting texts are to be shared by several idle streams, `parts` is the number of these streams, and the batch
        also has at most `1 / parts` of the waiting tokens. A batch of a single text may exceed these limits. `queued`
        is the number of queued tokens, including those of running batches.
        """
        self._requests = [request for request in self._requests if request.left and not request.gone]
        if not self._requests:
            self._lines.clear()
            return []
        if not (owners := dict.fromkeys(one.owner for one in self._requests if one.owner not in besides)):
            return []
        owner = min(owners, key=lambda one: self._lines[one].last)
        line = self._line(owner)
        first, *_ = self._places(owner)
        if self._requests[first].taken >= self._max_batch_tokens / PADDING:
            self._requests[first].taken = 0
            self._requests.append(self._requests.pop(first))
        place = self._leading(owner, line)
        leader = line.leader = self._requests[place]
        left = leader.tokens_left
        batch = self._chosen(self._window(place, besides), min(budget or self._max_batch_tokens, self._share(parts)))
        self._take(batch, queued)
        leader.taken += left - leader.tokens_left
        line.batches, line.last = line.batches + 1, self._batches
        self._batches += 1
        return batch

    def _line(self, owner: Hashable) -> _Line:
        """Return the scheduling state of `owner`, after deleting states that are no longer needed.

        These are the states of owners without requests whose last batch is older than the last batch of every owner
        with requests.
        """
        waiting = {request.owner for request in self._requests}
        longest = min(self._lines[one].last for one in waiting)
        self._lines = {one: line for one, line in self._lines.items() if one in waiting or line.last > longest}
        return self._lines[owner]

    def _places(self, owner: Hashable) -> list[int]:
        return [place for place, request in enumerate(self._requests) if request.owner == owner]

    def _leading(self, owner: Hashable, line: _Line) -> int:
        """Return the index of the request that leads the owner's next batch.

        A request is new until a batch contains one of its texts. Normally, the owner's first request leads, new or not.
        But if any new request of the owner would then wait longer than its limit, the owner's first new request leads.
        """
        own = self._places(owner)
        newcomers = [place for place in own if self._requests[place].new]
        # Check new requests in order of arrival, because each of them also waits for the new requests before it.
        late = any(self._requests[place].latest_batch - line.batches <= i for i, place in enumerate(newcomers))
        return newcomers[0] if late else own[0]

    def _share(self, parts: int) -> int:
        if parts == 1:
            return self._max_batch_tokens
        return min(self._max_batch_tokens, math.ceil(sum(one.tokens_left for one in self._requests) / parts))

    def _window(self, leading: int, besides: Container[Hashable]) -> list[Item]:
        """Return the candidates for a batch: the leader's longest text, and up to `WINDOW` - 1 other waiting texts.

        `leading` is the index of the leader, the request that leads the batch. The other texts have the order of
        `_in_turn`, in which requests take turns. Texts of the owners in `besides` are left out.
        """
        leader = self._requests[leading]
        first = leader.left[0]
        others = (
            item
            for item in self._in_turn()
            if (item.request is not leader or item.row != first) and item.request.owner not in besides
        )
        return [Item(leader, leading, first, leader.padded[first]), *islice(others, WINDOW - 1)]

    def _in_turn(self) -> Iterator[Item]:
        """Yield texts of the first `WINDOW` requests, in the order in which they become candidates for a batch.

        The longest texts of a request come first. Initially, each of the first `WINDOW / 2` requests has one text, so
        that requests with few texts have a candidate. After that, the requests take turns. In a turn, a request has up
        to `TEXTS_IN_TURN` texts, not just one, so that the requests at the front of the queue are completed first.
        """
        half, requests = WINDOW // 2, list(enumerate(self._requests[:WINDOW]))
        for place, one in requests[:half]:
            yield Item(one, place, one.left[0], one.padded[one.left[0]])
        for start in count(0, TEXTS_IN_TURN):
            requests = [(place, one) for place, one in requests if len(one.left) > start]
            if not requests:
                return
            for place, one in requests:
                for row in one.left[start or int(place < half) : start + TEXTS_IN_TURN]:
                    yield Item(one, place, row, one.padded[row])

    def _chosen(self, window: Sequence[Item], budget: int) -> list[Item]:
        """Choose the texts of a batch: the first text of `window`, and the texts with the most similar lengths.

        A text is left out if the batch would then exceed `budget` padded tokens or the padding ratio `PADDING`. It is
        also left out if the batch would then have more tokens than the `patience` of a request before its own.
        """
        first, *others = window
        # At each index, this is the smallest patience of the requests before the index, without the leader.
        each = (budget if one is first.request else one.patience for one in self._requests[:WINDOW])
        patience = list(accumulate(each, min, initial=budget))
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

    def _take(self, batch: Sequence[Item], queued: int) -> None:
        rows: dict[int, set[int]] = {}
        for item in batch:
            rows.setdefault(item.place, set()).add(item.row)
        passing = 0
        for place in range(max(rows), -1, -1):
            request = self._requests[place]
            if place in rows:
                request.left = [row for row in request.left if row not in rows[place]]
                request.patience = self._patience(queued)
                request.new = False
                taken = sum(request.lengths[row] for row in rows[place])
                request.tokens_left -= taken
                passing += taken
                if not request.left:
                    del self._requests[place]
            else:
                request.patience -= passing

    def _patience(self, queued: int) -> int:
        """Return the initial value of `Request.patience`: `queued` tokens, plus the tokens of a full batch.

        The patience of a request gets this value again whenever a batch takes texts of the request.
        """
        return queued + self._max_batch_tokens


class EngineSlots:
    """A fixed number of streams, on which several encoders run their batches.

    A free stream goes to the waiting encoder whose last turn is oldest. While an encoder waits, every other encoder
    therefore starts at most one batch.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.idle = number
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}
        """For each encoder, the futures of its waiting batches in order of arrival. While a batch waits, no stream is
        idle."""
        self._begun = count()
        self._last: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """Sequence number of the last turn of each encoder."""
        self.owners: Counter[Hashable] = Counter()
        """Number of texts in running batches, by owner."""
        self.connection: Hashable = None
        """Connection of the latest request to any of the encoders."""
        self.several_until = -math.inf
        """Time until which no batch runs on the event loop, because there are requests of several connections."""
        self.overtaken = False
        """True while a batch runs in an extra thread, in addition to batches on all streams."""

    @property
    def busy(self) -> int:
        """Number of streams that run a batch."""
        return self._number - self.idle

    @contextmanager
    def running(self, owners: Iterable[Hashable]) -> Iterator[None]:
        """Register the `owners` of a batch's texts while the `with` block runs the batch."""
        counted = Counter(owners)
        self.owners += counted
        try:
            yield
        finally:
            self.owners -= counted

    async def take(self, encoder: object) -> None:
        """Wait until a stream is free for a batch of `encoder`. The caller must call `give` after the batch."""
        if self.idle:
            self.idle -= 1
            self._last[encoder] = next(self._begun)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(encoder, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the task had got a stream before it was cancelled
                self.give()
            raise

    def give(self) -> None:
        """Release a stream. If an encoder is waiting, give the stream to the next encoder."""
        while self._waiting:
            encoder = min(self._waiting, key=lambda one: self._last.get(one, -1))
            turns = self._waiting[encoder]
            turn = turns.popleft()
            if not turns:
                del self._waiting[encoder]
            if not turn.done():
                self._last[encoder] = next(self._begun)
                turn.set_result(None)
                return
        self.idle += 1
