"""The queue of an encoder's tokenizer.

The tokenizer runs in its own thread, except for short texts, which are tokenised on the event loop. Texts that arrive
while the thread is busy are tokenised together in the next call.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from models.bundle.tokenizer import Direction, TokenizerFailure, Tokens
from serving.errors import Backend, Overloaded, shutting_down
from serving.operations.lru import Lru

TOKENIZED_AT_ONCE = 10_000
"""Approximate number of characters in one tokenizer call, which takes about 4 ms. A small request behind a large
request therefore waits for one call."""
TOKENIZED_ON_THE_SPOT = 600
"""Maximum characters that are tokenised on the event loop. They take 0.2 ms, less than a switch to another thread. Each
text counts as 20 additional characters."""
T = TypeVar("T")
S = TypeVar("S", bound=Sized)
Tokenize = Callable[[Sequence[str], Direction], list[Tokens]]


@dataclass(eq=False, slots=True)
class _Turn:
    texts: Sequence[str]
    direction: Direction
    future: asyncio.Future[list[Tokens]]
    alone: bool = False
    """True if these texts get a separate tokenizer call, because a call together with other texts has failed."""


class Tokenizing:
    """Queue of the tokenizer, with a cache of the tokens of recent texts.

    Each request is split into parts of about `TOKENIZED_AT_ONCE` characters, called turns. Waiting requests alternate:
    each gets one turn, in order of arrival, before any gets its next turn. Small turns of several requests are merged
    into one tokenizer call.
    """

    def __init__(self, tokenize: Tokenize, cache_bytes: int = 0, max_characters: float = math.inf) -> None:
        self._tokenize = _failing_alone(tokenize)
        self._characters = 0
        """Number of characters of all admitted requests."""
        self._max_characters = max_characters
        self._kept: Lru[tuple[str, Direction], Tokens] | None = Lru(cache_bytes) if cache_bytes else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._waiting: deque[_Turn] = deque()
        self._busy = False
        self._closed = False

    @contextmanager
    def admitted(self, characters: int) -> Iterator[None]:
        """Admit a request of the size `characters` while the `with` block runs.

        An idle tokenizer admits any request.

        Raises:
            Overloaded: too many characters wait already.
        """
        if self._characters and self._characters + characters > self._max_characters:
            raise Overloaded(
                f"{self._characters} characters wait for the tokenizer, and {characters} more would exceed the "
                f"limit of {self._max_characters}",
                retry_after=1,
            )
        self._characters += characters
        try:
            yield
        finally:
            self._characters -= characters

    async def tokens(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        """Return the tokens of each text in order. If the caller is cancelled, its waiting texts are not tokenised.

        Raises:
            Backend: the tokenizer failed.
            Unhealthy: the tokenizer was closed before all texts were tokenised.
        """
        if self._closed:
            raise shutting_down()
        if self._kept is None:
            return await self._fresh(texts, direction)
        kept = [self._kept.get((text, direction)) for text in texts]
        missing = [text for text, one in zip(texts, kept, strict=True) if one is None]
        coming = iter(await self._fresh(missing, direction))
        tokens = [next(coming) if one is None else one for one in kept]
        for text, one in zip(texts, tokens, strict=True):
            self._kept.put((text, direction), one, 4 * len(text) + one.ids.nbytes)
        return tokens

    async def _fresh(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        """Tokenise texts without the cache.

        If the texts are few and short, tokenise them on the event loop, otherwise in the tokenizer's thread.
        """
        if texts and sum(map(len, texts)) + 20 * len(texts) <= TOKENIZED_ON_THE_SPOT:
            return self._tokenize(texts, direction)
        fresh: list[Tokens] = []
        for turn in in_turns(texts):
            fresh += await self._tokens(turn, direction)
        return fresh

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the tokenizer's thread, between two calls of the tokenizer.

        Raises:
            Unhealthy: the tokenizer was closed before `work` could run.
            Backend: the tokenizer failed.
        """
        if self._closed:
            raise shutting_down()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TokenizerFailure as error:
            raise Backend(str(error)) from error

    async def close(self) -> None:
        """Wait until the running call has ended, then stop. Waiting requests fail with `Unhealthy`."""
        self._closed = True
        for turn in self._waiting:
            if not turn.future.done():
                turn.future.set_exception(shutting_down())
        self._waiting.clear()
        await asyncio.to_thread(self._thread.shutdown)

    def _tokens(self, texts: Sequence[str], direction: Direction) -> asyncio.Future[list[Tokens]]:
        if self._closed:
            raise shutting_down()
        turn = _Turn(texts, direction, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        if not self._busy:
            self._start()
        return turn.future

    def _start(self) -> None:
        turns = self._next()
        self._busy = bool(turns)
        if turns:
            texts = [text for turn in turns for text in turn.texts]
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._thread, self._tokenize, texts, turns[0].direction)
            running.add_done_callback(lambda done: self._deliver(turns, done))

    def _next(self) -> list[_Turn]:
        """Take the turns for the next tokenizer call from the queue. A turn has texts of one request.

        The call gets the oldest turn whose caller still waits, and later turns that fit into the call.
        """
        turns: list[_Turn] = []
        characters = 0
        while self._waiting:
            turn = self._waiting[0]
            if not turn.future.done():
                characters += sum(map(len, turn.texts))
                first = turns[0] if turns else turn
                together = turn.direction == first.direction and not (turn.alone or first.alone)
                if turns and (characters > TOKENIZED_AT_ONCE or not together):
                    break
                turns.append(turn)
            self._waiting.popleft()
        return turns

    def _deliver(self, turns: Sequence[_Turn], done: asyncio.Future[list[Tokens]]) -> None:
        failure = done.exception()
        # Retry each turn separately, so that only texts that cause the error fail.
        if failure and len(turns) > 1 and not self._closed:
            for turn in reversed(turns):
                turn.alone = True
                self._waiting.appendleft(turn)
        else:
            tokens = iter(() if failure else done.result())
            for turn in turns:
                own = list(islice(tokens, len(turn.texts)))
                if turn.future.done():
                    continue
                if failure:
                    turn.future.set_exception(failure)
                else:
                    turn.future.set_result(own)
        self._start()


def _failing_alone(tokenize: Tokenize) -> Tokenize:
    """Wrap `tokenize` in a function that raises `serving.errors.Backend` if the tokenizer fails.

    It is also a failure if the tokenizer does not return exactly one result for each text.
    """

    def tokenized(texts: Sequence[str], direction: Direction) -> list[Tokens]:
        try:
            tokens = tokenize(texts, direction)
        except TokenizerFailure as error:
            raise Backend(str(error)) from error
        if len(tokens) != len(texts):
            raise Backend(f"the tokenizer returned {len(tokens)} results for {len(texts)} texts")
        return tokens

    return tokenized


def in_turns(texts: Sequence[S], characters_of: Callable[[S], int] = len) -> Iterator[list[S]]:
    """Split texts, or pairs of texts, into lists of about `TOKENIZED_AT_ONCE` characters, in order."""
    turn, characters = list[S](), 0
    for text in texts:
        turn.append(text)
        characters += characters_of(text)
        if characters >= TOKENIZED_AT_ONCE:
            yield turn
            turn, characters = [], 0
    if turn:
        yield turn
