"""Tests of the rules of the tokenizer's queue for any arrivals, directions and cancellations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.tokenizer import Direction, TokenizerFailure, Tokens
from serving.errors import Backend, Unhealthy
from serving.inference import tokenizing
from serving.inference.tokenizing import TOKENIZED_AT_ONCE, Tokenizing
from tests.conftest import PATIENCE


@pytest.fixture(autouse=True, scope="module")
def in_its_thread() -> Iterator[None]:
    """Tokenise everything in the thread, although the texts of these tests are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing, "TOKENIZED_ON_THE_SPOT", -1)
        yield


@dataclass
class Tokenizer:
    """Tokenizer whose result is a text's length, negated for truncation from the left. It records its calls."""

    calls: list[tuple[list[str], Direction]] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        self.calls.append((list(texts), direction))
        assert self.open.wait(PATIENCE)
        if "poison" in texts:
            raise ValueError("poisoned")
        sign = 1 if direction == "right" else -1
        return [Tokens(np.array([sign * len(text)], dtype=np.int64), 1) for text in texts]


async def started(tokenizer: Tokenizer) -> None:
    while not tokenizer.calls:
        await asyncio.sleep(0)


requests = st.lists(
    st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from(["right", "left"]), st.booleans()),
    min_size=1,
    max_size=15,
)
"""Requests: the lengths of the texts, the direction, and whether the caller leaves."""


@given(requests)
def test_everyone_who_stays_gets_their_own_tokens_in_order(shape: list[tuple[list[int], Direction, bool]]) -> None:
    tokenizer = Tokenizer()

    async def main() -> None:
        queue = Tokenizing(tokenizer.tokenize)
        first = asyncio.create_task(queue.tokens(["first"], "right"))
        await started(tokenizer)
        waiting = [
            asyncio.create_task(queue.tokens([str(i)[-1] * n for n in texts], direction))
            for i, (texts, direction, _) in enumerate(shape)
        ]
        await asyncio.sleep(0)
        for task, (_, _, leaves) in zip(waiting, shape, strict=True):
            if leaves:
                task.cancel()
        await asyncio.sleep(0)
        tokenizer.open.set()
        assert [one.ids.tolist() for one in await first] == [[5]]
        for task, (texts, direction, leaves) in zip(waiting, shape, strict=True):
            if not leaves:
                sign = 1 if direction == "right" else -1
                assert [one.ids.tolist() for one in await task] == [[sign * n] for n in texts]
        await queue.close()

    asyncio.run(main())
    staying = [(texts, direction) for texts, direction, leaves in shape if not leaves]
    turns = 1 + sum(before[1] != after[1] for before, after in pairwise(staying))
    assert sum(len(texts) for texts, _ in tokenizer.calls[1:]) == sum(len(texts) for texts, _ in staying)
    assert len(tokenizer.calls) == 1 + (turns if staying else 0), "those who waited go together"


def test_a_small_request_passes_between_the_turns_of_a_large_one() -> None:
    tokenizer = Tokenizer()
    piece = "x" * (TOKENIZED_AT_ONCE // 2)

    async def main() -> None:
        queue = Tokenizing(tokenizer.tokenize)
        large = asyncio.create_task(queue.tokens([piece] * 6, "right"))
        await started(tokenizer)
        small = asyncio.create_task(queue.tokens(["small"], "right"))
        await asyncio.sleep(0)
        tokenizer.open.set()
        await asyncio.gather(large, small)
        await queue.close()

    asyncio.run(main())
    assert [texts for texts, _ in tokenizer.calls] == [[piece] * 2, ["small"], [piece] * 2, [piece] * 2]


def test_an_error_reaches_its_call_and_the_next_one_works() -> None:
    tokenizer = Tokenizer()
    tokenizer.open.set()

    async def main() -> None:
        queue = Tokenizing(tokenizer.tokenize)
        with pytest.raises(ValueError, match="poisoned"):
            await queue.tokens(["poison"], "right")
        assert len(await queue.tokens(["fine"], "right")) == 1
        await queue.close()

    asyncio.run(main())


@pytest.mark.parametrize("poisoned", [0, 1, 2])
def test_only_the_poisoned_one_of_a_call_hears_of_it(poisoned: int) -> None:
    tokenizer = Tokenizer()

    async def main() -> None:
        queue = Tokenizing(tokenizer.tokenize)
        first = asyncio.create_task(queue.tokens(["first"], "right"))
        await started(tokenizer)
        texts = [["poison"] if i == poisoned else ["x" * i, "y"] for i in range(3)]
        waiting = [asyncio.create_task(queue.tokens(each, "right")) for each in texts]
        await asyncio.sleep(0)
        tokenizer.open.set()
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(first, *waiting, return_exceptions=True)
            assert [isinstance(answer, ValueError) for answer in answers[1:]] == [i == poisoned for i in range(3)]
            for i, answer in enumerate(answers[1:]):
                assert isinstance(answer, BaseException) or [one.ids.tolist() for one in answer] == [[i], [1]]
            assert len(await queue.tokens(["fine"], "right")) == 1
        await queue.close()

    asyncio.run(main())
    assert [len(texts) for texts, _ in tokenizer.calls[1:-1]] == [5] + [1 if i == poisoned else 2 for i in range(3)]


def test_too_few_results_reach_nobody_as_their_own_and_nobody_hangs() -> None:
    async def main() -> None:
        queue = Tokenizing(lambda texts, _: [Tokens(np.zeros(1, dtype=np.int64), 1)] * (len(texts) - 1))
        async with asyncio.timeout(PATIENCE):
            answers = [asyncio.create_task(queue.tokens(["a", "b"], "right")) for _ in range(3)]
            for answer in await asyncio.gather(*answers, return_exceptions=True):
                assert isinstance(answer, Backend) and "1 results for 2 texts" in str(answer)
        await queue.close()

    asyncio.run(main())


def test_a_call_that_fails_while_closing_hangs_nobody() -> None:
    tokenizer = Tokenizer()

    async def main() -> None:
        queue = Tokenizing(tokenizer.tokenize)
        first = asyncio.create_task(queue.tokens(["first"], "right"))
        await started(tokenizer)
        together = [asyncio.create_task(queue.tokens([text], "right")) for text in ("poison", "fine")]
        await asyncio.sleep(0)
        tokenizer.open.set()
        await first
        while len(tokenizer.calls) < 2:
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await queue.close()
            assert all(isinstance(one, Exception) for one in await asyncio.gather(*together, return_exceptions=True))

    asyncio.run(main())


def test_closing_tells_those_who_wait() -> None:
    tokenizer = Tokenizer()

    async def main() -> None:
        queue = Tokenizing(tokenizer.tokenize)
        running = asyncio.create_task(queue.tokens(["running"], "right"))
        await started(tokenizer)
        waiting = asyncio.create_task(queue.tokens(["waiting"], "right"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(queue.close())
        with pytest.raises(Unhealthy):
            await waiting
        tokenizer.open.set()
        assert len(await running) == 1
        await closing
        with pytest.raises(Unhealthy):
            await queue.tokens(["late"], "right")

    asyncio.run(main())
    assert len(tokenizer.calls) == 1


def test_a_text_that_comes_again_is_not_tokenised_again_from_the_same_side() -> None:
    calls: list[list[str]] = []

    def tokenize(texts: Sequence[str], direction: Direction) -> list[Tokens]:
        calls.append(list(texts))
        return [Tokens(np.arange(len(text)) if direction == "right" else -np.arange(len(text)), 9) for text in texts]

    async def main() -> None:
        tokenizing = Tokenizing(tokenize, cache_bytes=10_000)
        first = await tokenizing.tokens(["abc", "de", "abc"], "right")
        again = await tokenizing.tokens(["f", "abc", "de"], "right")
        left = await tokenizing.tokens(["abc"], "left")
        assert [one.ids.tolist() for one in first] == [[0, 1, 2], [0, 1], [0, 1, 2]]
        assert [one.ids.tolist() for one in again] == [[0], [0, 1, 2], [0, 1]]
        assert left[0].ids.tolist() == [0, -1, -2]
        await tokenizing.close()

    asyncio.run(main())
    assert calls == [["abc", "de", "abc"], ["f"], ["abc"]]


def test_a_few_words_are_tokenised_on_the_spot_and_more_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "TOKENIZED_ON_THE_SPOT", 50)
    threads: list[str] = []

    def tokenize(texts: Sequence[str], direction: Direction) -> list[Tokens]:
        threads.append(threading.current_thread().name)
        return [Tokens(np.arange(len(text)), 9) for text in texts]

    async def main() -> None:
        service = Tokenizing(tokenize)
        for texts in (["abcde", "fghij"], ["abcde", "fghijk"], [""] * 3):
            assert [len(one) for one in await service.tokens(texts, "right")] == [len(text) for text in texts]
        await service.close()
        with pytest.raises(Unhealthy):
            await service.tokens(["a"], "right")

    asyncio.run(main())
    assert threads[0] == threading.main_thread().name
    assert [name.startswith("tokenizer") for name in threads[1:]] == [True, True]


@pytest.mark.parametrize("on_the_spot", [-1, 1000])
def test_a_tokenizer_that_gives_up_is_told_to_the_caller_of_that_text(
    on_the_spot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizing, "TOKENIZED_ON_THE_SPOT", on_the_spot)

    def tokenize(texts: Sequence[str], direction: Direction) -> list[Tokens]:
        if "bad" in texts:
            raise TokenizerFailure("the tokenizer gave up")
        return [Tokens(np.array([len(text)]), 1) for text in texts]

    async def main() -> None:
        queue = Tokenizing(tokenize)
        told = await asyncio.gather(
            *(queue.tokens([text], "right") for text in ("good", "bad", "fine")),
            queue.run(lambda: tokenize(["bad"], "right")),
            return_exceptions=True,
        )
        await queue.close()
        assert [type(one) for one in told] == [list, Backend, list, Backend]

    asyncio.run(main())
