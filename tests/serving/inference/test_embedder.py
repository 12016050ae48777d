"""Tests of the steps before the tokenizer: texts are divided, tokenised in turns, and admitted if there is room."""

from __future__ import annotations

import asyncio
import threading
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.bundle.tokenizer import CHARACTERS_PER_TOKEN, Direction, TextPair, Tokens
from serving.corpora import library
from serving.errors import Invalid, Overloaded, ServiceError, TooLarge, Unhealthy
from serving.inference import tokenizing
from serving.inference.embedder import Embedder
from serving.inference.embeddings import EmbedOptions
from serving.inference.engine import Embedded
from serving.inference.engines import ENGINES
from serving.inference.fake_engine import MAX_LENGTH, FakeEngine
from serving.inference.tokenizing import TOKENIZED_AT_ONCE
from serving.jobs.job import retry_while_busy
from serving.operations.context import holding
from serving.operations.keys import Key
from serving.operations.limits import PATIENT, Caller, Limits, charged_to
from serving.operations.metrics import Metrics
from serving.settings import Settings
from tests.conftest import PATIENCE

READ = MAX_LENGTH * CHARACTERS_PER_TOKEN


@pytest.fixture(autouse=True, scope="module")
def in_its_thread() -> Iterator[None]:
    """Tokenise everything in the thread, although the texts of these tests are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing, "TOKENIZED_ON_THE_SPOT", -1)
        yield


@dataclass
class Recording(FakeEngine):
    """Tokenizer that records its texts and waits for `open`."""

    turns: list[list[str]] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        assert self.open.wait(PATIENCE)
        self.turns.append(list(texts))
        return super().tokenize(texts, direction)


def embedding(
    engine: Recording, work: Callable[[Embedder], Awaitable[None]], metrics: Metrics | None = None, **options: Any
) -> None:
    """Run `work` with an embedder around `engine`."""

    async def main() -> None:
        embedder = Embedder(engine, ENGINES["fake"](Path()), Settings(**options), metrics or Metrics())
        async with asyncio.timeout(PATIENCE):
            try:
                await work(embedder)
            finally:
                engine.open.set()
                await embedder.close()

    asyncio.run(main())


@pytest.mark.parametrize("word", ["a ", "a"])
def test_a_text_is_cut_before_it_is_tokenised_and_that_is_told(word: str) -> None:
    engine = Recording()
    engine.open.set()
    text = ("left" + word * READ + "right")[: 2 * READ]

    async def work(embedder: Embedder) -> None:
        for options, kept in (
            (EmbedOptions(direction="right"), text[:READ]),
            (EmbedOptions(direction="left"), text[-READ:]),
        ):
            assert (await embedder.embed(["short", text], options)).truncated == 1
            assert engine.turns.pop() == ["short", kept]
        with pytest.raises(TooLarge, match=r"inputs\.1: .* truncate is false"):
            await embedder.embed(["short", text], EmbedOptions(truncate=False))
        assert not engine.turns

    embedding(engine, work)


class Pairs(Recording):
    """Tokenizer of pairs that records them."""

    def tokenize_pairs(self, pairs: Sequence[TextPair], direction: Direction) -> list[Tokens]:
        self.turns.append([first + second for first, second in pairs])
        return super().tokenize_pairs(pairs, direction)


@pytest.mark.parametrize("place", [0, 1])
def test_a_pair_is_cut_before_it_is_tokenised_and_that_is_told(place: int) -> None:
    pairs = [("a", "b")] * 2
    pairs[place] = ("a", " " * READ + "end")

    async def work(embedder: Embedder) -> None:
        tokens = await embedder.preparation.pair_tokens(pairs, EmbedOptions(), "texts")
        assert [one.truncated for one in tokens] == [i == place for i in range(2)]
        with pytest.raises(TooLarge, match=rf"texts\.{place}: .* truncate is false"):
            await embedder.preparation.pair_tokens(pairs, EmbedOptions(truncate=False), "texts")

    embedding(Pairs(), work)


def test_pairs_are_refused_before_the_tokenizer_has_read_a_long_query_for_each() -> None:
    engine = Pairs()

    async def work(embedder: Embedder) -> None:
        query = "a " * TOKENIZED_AT_ONCE
        with pytest.raises(TooLarge, match="tokens are more than the 1000"):
            await embedder.preparation.pair_tokens([(query, "b")] * 40, EmbedOptions(), "texts")
        assert len(engine.turns) == 8, "of 128 tokens each"
        with pytest.raises(TooLarge, match="characters"):
            await embedder.preparation.pair_tokens([(query, "b")] * 51, EmbedOptions(), "texts")
        assert len(engine.turns) == 8

    embedding(engine, work, max_request_tokens=1000, max_tokenizing_characters=1_000_000)


def test_only_the_tokens_that_are_kept_of_a_document_count() -> None:
    texts = ["a b c d e f", "a b", ""]

    async def work(embedder: Embedder) -> None:
        assert await embedder.beginnings(texts, 2, "documents") == (["a b", "a b", ""], [0])
        with pytest.raises(TooLarge, match="documents"):
            await embedder.beginnings(["a b c d e f"] * 3, 4, "documents")

    embedding(Recording(), work, max_request_tokens=6)


def test_a_text_of_just_that_length_is_not_cut() -> None:
    engine = Recording()
    engine.open.set()

    async def work(embedder: Embedder) -> None:
        assert (await embedder.embed(["a" * READ], EmbedOptions(truncate=False))).truncated == 0

    embedding(engine, work)


def test_much_text_is_tokenised_in_turns_and_stays_in_order() -> None:
    engine = Recording()
    engine.open.set()
    texts = [f"{i} " + "x" * 30_000 for i in range(100)]

    async def work(embedder: Embedder) -> None:
        await embedder.embed(texts, EmbedOptions())

    embedding(engine, work)
    assert [text for turn in engine.turns for text in turn] == texts
    assert max(sum(map(len, turn)) for turn in engine.turns) < TOKENIZED_AT_ONCE + 40_000


def test_what_waits_for_the_tokenizer_is_bounded() -> None:
    engine = Recording()

    async def work(embedder: Embedder) -> None:
        first = asyncio.create_task(embedder.embed(["a" * 1500], EmbedOptions()))  # A single text is always admitted.
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await embedder.embed(["b"], EmbedOptions())
        assert refused.value.retry_after
        engine.open.set()
        await first
        await asyncio.gather(*(embedder.embed(["b" * 200], EmbedOptions()) for _ in range(5)))
        leaving = asyncio.create_task(embedder.embed(["a" * 1500], EmbedOptions()))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await embedder.embed(["b"], EmbedOptions())

    embedding(engine, work, max_tokenizing_characters=1000)


def test_who_leaves_is_counted() -> None:
    engine, metrics = Recording(), Metrics()

    async def work(embedder: Embedder) -> None:
        leaving = asyncio.create_task(embedder.embed(["a"], EmbedOptions()))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)

    embedding(engine, work, metrics)
    assert 'te_request_failure{err="dropped"} 1.0' in metrics.text().decode()


def test_closing_tells_those_who_wait_for_the_tokenizer() -> None:
    engine = Recording()
    told: list[ServiceError] = []

    async def work(embedder: Embedder) -> None:
        waiting = asyncio.create_task(embedder.embed(["x" * 30_000] * 100, EmbedOptions()))
        await asyncio.sleep(0)
        closing = asyncio.create_task(embedder.close())
        await asyncio.sleep(0)
        engine.open.set()
        with pytest.raises(Unhealthy) as refused:
            await waiting
        told.append(refused.value)
        await closing

    embedding(engine, work)
    assert told and len(engine.turns) == 1


@dataclass
class Busy(Recording):
    """Engine that also waits for `embeds` before it embeds."""

    embeds: threading.Event = field(default_factory=threading.Event)

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        assert self.embeds.wait(PATIENCE)
        return super().embed(batch, alone=alone)


def test_what_a_full_queue_will_refuse_is_not_tokenised_first() -> None:
    engine = Busy()
    engine.open.set()
    text = "word " * 90

    async def work(embedder: Embedder) -> None:
        waiting = [asyncio.create_task(embedder.embed([text], EmbedOptions())) for _ in range(3)]
        while embedder.batcher.queued_tokens < 3 * 92:
            await asyncio.sleep(0.001)
        engine.turns.clear()
        with pytest.raises(Overloaded, match="276 tokens are queued, and 90 more would exceed the limit of 300"):
            await embedder.embed([text], EmbedOptions())
        assert not engine.turns
        engine.embeds.set()
        await asyncio.gather(*waiting)

    embedding(engine, work, max_queued_tokens=300, max_request_tokens=300)


def test_those_with_the_tokenizer_count_as_if_they_were_queued() -> None:
    engine = Busy()
    engine.open.set()
    text = "word " * 90

    async def work(embedder: Embedder) -> None:
        queued = asyncio.create_task(embedder.embed([text], EmbedOptions()))
        while not embedder.batcher.queued_tokens:
            await asyncio.sleep(0.001)
        engine.open.clear()
        on_their_way = [asyncio.create_task(embedder.embed([text], EmbedOptions())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="92 tokens are queued, and 270 more would exceed the limit of 300"):
            await embedder.embed([text], EmbedOptions())
        engine.open.set()
        engine.embeds.set()
        await asyncio.gather(queued, *on_their_way)
        await embedder.embed([text], EmbedOptions())

    embedding(engine, work, max_queued_tokens=300, max_request_tokens=300)


def test_the_queue_s_refusal_costs_a_key_nothing() -> None:
    engine = Busy()
    engine.open.set()
    caller = Caller(Key(name="a", sha256="0" * 64, scopes=("read",), tokens_per_second=1), Limits(), lambda: 0)

    async def work(embedder: Embedder) -> None:
        waiting = [asyncio.create_task(embedder.embed(["word " * 90], EmbedOptions())) for _ in range(3)]
        while embedder.batcher.queued_tokens < 3 * 92:
            await asyncio.sleep(0.001)
        with charged_to(caller), pytest.raises(Overloaded, match="276 tokens are queued, and 62 more"):
            await embedder.embed(["a " * 60], EmbedOptions())  # The guess is higher than the real number.
        caller.charge(1)
        engine.embeds.set()
        await asyncio.gather(*waiting)

    embedding(engine, work, max_queued_tokens=300, max_request_tokens=300)


def test_a_later_slice_is_offered_until_the_queue_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait with a later part of an upload, because a refusal would restart the whole upload."""
    monkeypatch.setattr(library, "SLICE_TEXTS", 1)
    engine, metrics = Recording(), Metrics()
    engine.open.set()

    async def work(embedder: Embedder) -> None:
        submitted, refused = embedder.batcher.submit, [1, 1, 0]

        async def submit(texts: Sequence[Tokens], *, bulk: bool = False) -> Any:
            if refused and refused.pop():
                raise Overloaded("full", retry_after=0.001)
            return await submitted(texts, bulk=bulk)

        embedder._embedded = submit
        vectors, _ = await library.embed_passages(embedder, ["one", "two"], str)
        assert not refused
        assert counts(metrics) == [2, 2, None, 2]
        alone = [await embedder.embed([text], EmbedOptions()) for text in ("one", "two")]
        assert np.array_equal(vectors, np.concatenate([one.vectors for one in alone]))
        refused.append(1)
        with pytest.raises(Overloaded):
            await library.embed_passages(embedder, ["one", "two"], str)
        assert counts(metrics) == [5, 4, 1, 4]

    embedding(engine, work, metrics)


def test_a_request_that_a_job_repeats_is_counted_once() -> None:
    engine, metrics = Recording(), Metrics()
    engine.open.set()

    async def work(embedder: Embedder) -> None:
        submitted = embedder.batcher.submit
        errors = [Invalid("never"), *[Overloaded("full", retry_after=0.001)] * 3]

        async def submit(texts: Sequence[Tokens], *, bulk: bool = False) -> Any:
            if errors:
                raise errors.pop()
            return await submitted(texts, bulk=bulk)

        embedder._embedded = submit
        for expected in ([1, 0, None, 0], [2, 1, None, 1]):
            with holding(PATIENT, True), suppress(Invalid):
                await retry_while_busy(lambda: embedder.embed(["one"], EmbedOptions()))
            assert counts(metrics) == expected

    embedding(engine, work, metrics)


def counts(metrics: Metrics) -> list[float | None]:
    """Return the number of requests, of successes and of refusals by the queue, and the number of tokenised texts."""
    value = metrics.registry.get_sample_value
    single = {"method": "single"}
    return [
        value("te_request_count", single),
        value("te_request_success", single),
        value("te_request_failure", {"err": "overloaded"}),
        value("te_request_input_length_count"),
    ]


class Spelling(Recording):
    """Tokenizer with one token per character and an initial token for a space. Some characters have several tokens."""

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        lengths = [len(unicodedata.normalize("NFKC", text)) + 3 for text in texts]
        return [Tokens(np.full(min(length, MAX_LENGTH), 7), length) for length in lengths]


@pytest.mark.parametrize(
    ("text", "cut"), [("a" * (MAX_LENGTH - 3), 0), ("a" * (MAX_LENGTH - 2), 1), ("\ufdfa" * 8, 1), ("é" * 9, 0)]
)
def test_what_would_be_cut_is_known_of_every_tokenizer(text: str, cut: int) -> None:
    engine = Spelling()
    engine.open.set()

    async def work(embedder: Embedder) -> None:
        assert await embedder.preparation.cut([text, "short"]) == cut

    embedding(engine, work)
