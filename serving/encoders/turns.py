"""The order in which waiting requests get into batches, without threads or a clock."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, islice
from typing import Generic, NamedTuple, TypeVar

WINDOW = 512
"""Texts among which the companions of a batch's first are chosen."""
TEXTS_IN_TURN = 32
"""Of a request, in the second half of the window: as many as requests of several texts often have."""
PADDING = 1.25
"""A batch computes at most this many tokens per useful one: at least one in 1.25 is a real token."""


@dataclass(eq=False, slots=True, kw_only=True)
class Waiting:
    """A request, as far as its texts were in no batch yet."""

    lengths: Sequence[int]
    """Tokens of each text."""
    padded: Sequence[int]
    """The same, rounded up as the engine does."""
    owner: Hashable = None
    """Whose request it is: owners take turns, however many requests each of them has."""
    left: list[int] = field(init=False)
    """Rows that were in no batch yet, longest first."""
    tokens_left: int = field(init=False)
    """Of those rows."""
    patience: int = 0
    """Tokens of requests behind it that may still fill up the batches before its next text."""
    new: bool = True
    """None of its texts was in a batch yet."""
    due: int = 0
    """How many batches its owner may lead, counted as `_Line.batches`, before one with a text of it."""
    taken: int = 0
    """Tokens of it in the batches that it led, since its turn began."""

    def __post_init__(self) -> None:
        self.left = sorted(range(len(self.lengths)), key=self.lengths.__getitem__, reverse=True)
        self.tokens_left = sum(self.lengths)

    @property
    def gone(self) -> bool:
        """Return whether its caller has left."""
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


@dataclass(eq=False, slots=True)
class _Line(Generic[W]):
    """An owner at work."""

    batches: int = 0
    """That its requests led."""
    last: int = -1
    """The number of the last of them among the batches of all."""
    leader: W | None = None
    """Of that batch."""


class Turns(Generic[W]):
    """Owners take turns: the next batch belongs to the one that led a batch longest ago, and to nobody else's request.

    Requests of one owner take turns, oldest first. One leads batches, each with the longest of its texts that are left,
    until as many of its tokens are taken as fill a batch, padding allowed; then it goes behind all others. The rest of
    a batch are the nearest in length, of any request, so that little is padded; among equals, those whose turn is next.

    The law of waiting: until the first text of a request is in a batch, its owner leads at most as many batches as it
    had requests ahead of it when it came, less the one that led the last batch, and before each of them each other
    owner leads at most one. Of one owner alone, their tokens are at most twice those that were queued then, and one
    batch. So a request, however large, delays a single text behind it by one batch; and no stream of others, whatever
    their lengths, keeps a text waiting for ever. Where the law asks for it, newcomers lead a batch out of turn: between
    two batches that are led in turn those that came before the first of them ended.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._requests: list[W] = []
        """Those with texts that were in no batch yet, in the order of their turns."""
        self._lines: dict[Hashable, _Line[W]] = {}
        """Of owners with requests, and of those without that led a batch after one of them did."""
        self._batches = 0
        """That were made."""

    @property
    def texts(self) -> int:
        """Texts waiting, those included that nobody waits for and that will be skipped."""
        return sum(len(request.left) for request in self._requests)

    @property
    def tokens(self) -> int:
        """Sum the tokens of the texts that are left."""
        return sum(request.tokens_left for request in self._requests)

    @property
    def empty(self) -> bool:
        """Return whether there is no request, not even one whose caller has left."""
        return not self._requests

    @property
    def waiting(self) -> bool:
        """Return whether a caller still waits for a text."""
        return any(request.left and not request.gone for request in self._requests)

    def add(self, request: W, *, queued: int) -> None:
        """Put it behind the others, where `queued` tokens are ahead of it, those included that are being embedded."""
        request.patience = self._patience(queued)
        line, own = self._lines.setdefault(request.owner, _Line()), self._places(request.owner)
        led = any(self._requests[place] is line.leader for place in own)
        request.due = line.batches + len(own) - led
        self._requests.append(request)

    def next_batch(self, *, queued: int, parts: int = 1, budget: int | None = None) -> list[Item[W]]:
        """A text of the request whose turn it is, and those nearest to its length that fit the budget.

        `parts` is among how many batches what waits is to be shared; `queued` is as in `add`.
        """
        self._requests = [request for request in self._requests if request.left and not request.gone]
        if not self._requests:
            self._lines.clear()
            return []
        owner, line = self._next_line()
        first, *_ = self._places(owner)
        if self._requests[first].taken >= self._max_batch_tokens / PADDING:
            self._requests[first].taken = 0
            self._requests.append(self._requests.pop(first))
        place = self._leading(owner, line)
        leader = line.leader = self._requests[place]
        left = leader.tokens_left
        batch = self._chosen(self._window(place), min(budget or self._max_batch_tokens, self._share(parts)))
        self._take(batch, queued)
        leader.taken += left - leader.tokens_left
        line.batches, line.last = line.batches + 1, self._batches
        self._batches += 1
        return batch

    def _next_line(self) -> tuple[Hashable, _Line[W]]:
        """The owner whose turn it is; whoever has no request is forgotten once it would be next anyway."""
        waiting = dict.fromkeys(request.owner for request in self._requests)
        owner = min(waiting, key=lambda one: self._lines[one].last)
        longest = self._lines[owner].last
        self._lines = {one: line for one, line in self._lines.items() if one in waiting or line.last > longest}
        return owner, self._lines[owner]

    def _places(self, owner: Hashable) -> list[int]:
        return [place for place, request in enumerate(self._requests) if request.owner == owner]

    def _leading(self, owner: Hashable, line: _Line[W]) -> int:
        """The place of the request that leads: the owner's first, unless a newcomer would come too late for the law."""
        own = self._places(owner)
        newcomers = [place for place in own if self._requests[place].new]
        # they come first to last: each has to wait for those before it, too
        late = any(self._requests[place].due - line.batches <= i for i, place in enumerate(newcomers))
        return newcomers[0] if late else own[0]

    def _share(self, parts: int) -> int:
        if parts == 1:
            return self._max_batch_tokens
        return min(self._max_batch_tokens, math.ceil(sum(one.tokens_left for one in self._requests) / parts))

    def _window(self, leading: int) -> list[Item[W]]:
        """The longest text of the leader, and so many more, of each request its longest first."""
        leader = self._requests[leading]
        first = leader.left[0]
        others = (item for item in self._in_turn() if item.request is not leader or item.row != first)
        return [Item(leader, leading, first, leader.padded[first]), *islice(others, WINDOW - 1)]

    def _in_turn(self) -> Iterator[Item[W]]:
        """A text of each of the first requests, so that short requests come along; then request after request, so
        that those end whose turn is next.
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

    def _chosen(self, window: Sequence[Item[W]], budget: int) -> list[Item[W]]:
        """The first of `window`, and the nearest to its length while budget, padding and patience allow."""
        first, *others = window
        # at each place, of the least patient that would be passed: all before it but the leader
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
                request.new = False
                taken = sum(request.lengths[row] for row in rows[place])
                request.tokens_left -= taken
                passing += taken
                if not request.left:
                    del self._requests[place]
            else:
                request.patience -= passing

    def _patience(self, queued: int) -> int:
        """As much as is ahead of whoever comes now, so that the law holds; and a batch, for the queue that is empty."""
        return queued + self._max_batch_tokens
