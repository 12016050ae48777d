"""Whose texts make the next batch. No threads, no clock: the law of waiting by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, repeat, zip_longest
from typing import Generic, NamedTuple, TypeVar

WINDOW = 512
"""Texts among which the companions of a batch's first are chosen."""
PADDING = 1.25
"""A batch computes at most this many tokens per useful one: at least one in 1.25 is a real token."""


@dataclass(eq=False, slots=True, kw_only=True)
class Waiting:
    """A request, as far as its texts were in no batch yet."""

    lengths: Sequence[int]
    """Tokens of each text."""
    padded: Sequence[int]
    """The same, rounded up as the engine does."""
    left: list[int] = field(init=False)
    """Rows that were in no batch yet, longest first."""
    tokens_left: int = field(init=False)
    """Of those rows."""
    patience: int = 0
    """Tokens of requests behind it that may still be embedded before its next text."""

    def __post_init__(self) -> None:
        self.left = sorted(range(len(self.lengths)), key=self.lengths.__getitem__, reverse=True)
        self.tokens_left = sum(self.lengths)

    @property
    def gone(self) -> bool:
        """Whether nobody waits for it any more."""
        return False


W = TypeVar("W", bound=Waiting)


class Item(NamedTuple, Generic[W]):
    """A text in a batch."""

    request: W
    place: int
    """Of the request among those that waited."""
    row: int
    length: int
    """Of the text, rounded up."""


class Turns(Generic[W]):
    """Requests take turns, oldest first: one leads a batch with the longest of its texts, then goes behind those that
    came meanwhile. The rest of the batch are the nearest in length, of any request, so that little is padded.

    The law of waiting: until the first text of a request is in a batch, each request ahead of it leads at most one, and
    the tokens of these batches are at most twice those that were queued when it came, and one batch. So a request,
    however large, delays a single text behind it by one batch; and no stream of others, whatever their lengths, keeps a
    text waiting for ever. Between two batches of a request the same holds, counted from the first of them.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._requests: list[W] = []
        """Those with texts that were in no batch yet, in the order of their turns."""
        self._leader: W | None = None
        """Of the last batch: first among the requests until the next batch is made."""

    @property
    def texts(self) -> int:
        """Texts waiting, those included that nobody waits for and that will be skipped."""
        return sum(len(request.left) for request in self._requests)

    @property
    def tokens(self) -> int:
        """Of those texts."""
        return sum(request.tokens_left for request in self._requests)

    @property
    def empty(self) -> bool:
        """Whether nobody is here, not even one who left."""
        return not self._requests

    @property
    def waiting(self) -> bool:
        """Whether anybody waits for a text."""
        return any(request.left and not request.gone for request in self._requests)

    def add(self, request: W, *, queued: int) -> None:
        """Put it behind the others, where `queued` tokens are ahead of it, those included that are being embedded."""
        request.patience = self._patience(queued)
        self._requests.append(request)

    def next_batch(self, *, queued: int, parts: int = 1, budget: int | None = None) -> list[Item[W]]:
        """A text of the request whose turn it is, and those nearest to its length that fit the budget.

        `parts` is among how many batches what waits is to be shared; `queued` is as in `add`.
        """
        self._requests = [request for request in self._requests if request.left and not request.gone]
        if self._requests and self._requests[0] is self._leader:
            self._requests.append(self._requests.pop(0))
        if not self._requests:
            self._leader = None
            return []
        self._leader = self._requests[0]
        batch = self._chosen(self._window(), min(budget or self._max_batch_tokens, self._share(parts)))
        self._take(batch, queued)
        return batch

    def _share(self, parts: int) -> int:
        if parts == 1:
            return self._max_batch_tokens
        return min(self._max_batch_tokens, math.ceil(sum(one.tokens_left for one in self._requests) / parts))

    def _window(self) -> list[Item[W]]:
        """One text of each request in turn, a request's longest first."""
        each = (
            zip(repeat(one), repeat(place), one.left, map(one.padded.__getitem__, one.left))
            for place, one in enumerate(self._requests[:WINDOW])
        )
        turns = chain.from_iterable(zip_longest(*each))
        return [Item._make(one) for one in islice(filter(None, turns), WINDOW)]

    def _chosen(self, window: Sequence[Item[W]], budget: int) -> list[Item[W]]:
        """The first of `window`, and the nearest to its length while budget, padding and patience allow."""
        first, *others = window
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

    def _take(self, batch: Sequence[Item[W]], queued: int) -> None:
        rows: dict[int, set[int]] = {}
        for item in batch:
            rows.setdefault(item.place, set()).add(item.row)
        passing = 0
        for place in range(max(rows), -1, -1):
            request = self._requests[place]
            if place in rows:
                request.left = [row for row in request.left if row not in rows[place]]
                request.patience = self._patience(queued)
                taken = sum(request.lengths[row] for row in rows[place])
                request.tokens_left -= taken
                passing += taken
            else:
                request.patience -= passing

    def _patience(self, queued: int) -> int:
        """As much as is ahead of whoever comes now, so that the law holds; and a batch, for the queue that is empty."""
        return queued + self._max_batch_tokens
