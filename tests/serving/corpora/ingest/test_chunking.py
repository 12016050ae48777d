"""Passages: what they cover, how long they are, how far they overlap, where they end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.bundle.tokenizer import Piece
from serving.corpora.ingest.chunking import asked_chunking, cut
from serving.corpora.values import Chunking, Span
from serving.errors import Invalid

Cutter = Callable[[Sequence[str]], list[list[Piece]]]


def _pieces(pattern: str, each: int = 1) -> Cutter:
    """Tokens are what `pattern` finds, each `each` times, as the bytes of one character are."""

    def pieces(texts: Sequence[str]) -> list[list[Piece]]:
        return [
            [Piece(0, m[0], False, m.start(), m.end()) for m in re.finditer(pattern, text) for _ in range(each)]
            for text in texts
        ]

    return pieces


TOKENIZERS = {
    "words": _pieces(r"\w+|[^\w\s]"),
    "parts of words": _pieces(r"\w{1,3}|[^\w\s]"),
    "words with their space": _pieces(r"\s?\w{1,4}|[^\w\s]|\s"),
    "characters": _pieces(r"\S"),
    "bytes": _pieces(r"\S", 4),
    "letters alone": _pieces(r"[a-z]+"),
}
TEXTS = st.text(st.sampled_from("abcdefg  .!?\n\t。é🎉)\"'"), max_size=400) | st.text(max_size=200)
CHUNKINGS = st.integers(16, 40).flatmap(lambda n: st.builds(Chunking, st.just(n), st.integers(0, n // 2)))


def within(span: Span, tokens: Sequence[Piece]) -> list[int]:
    return [i for i, one in enumerate(tokens) if (one.start or 0) < span.end and (one.stop or 0) > span.start]


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(text=TEXTS, chunking=CHUNKINGS)
@example(text=16 * "?" + " ", chunking=Chunking(16, 1))
@example(text=12 * " " + 20 * "?", chunking=Chunking(16, 8))
def test_laws(tokenizer: Cutter, text: str, chunking: Chunking) -> None:
    spans = cut([text], chunking, tokenizer)[0]
    tokens = tokenizer([text])[0]
    if len(tokens) <= chunking.tokens:
        assert spans == [Span(0, len(text))]
        return
    assert all(0 <= span.start < span.end <= len(text) for span in spans), "bounds"
    assert all(a.start < b.start and a.end < b.end for a, b in pairwise(spans)), "order"
    covered = set[int]().union(*(range(*span) for span in spans))
    assert all(text[i].isspace() for i in range(len(text)) if i not in covered), "coverage"
    assert all(text[i] == text[i].strip() for span in spans for i in (span.start, span.end - 1)), (
        "no white space around"
    )
    spaces = [i for i, one in enumerate(tokens) if one.text.isspace()]
    for span in spans:
        assert len([i for i in within(span, tokens) if i not in spaces]) <= chunking.tokens, "length"
    for one, two in pairwise(spans):
        assert len(set(within(one, tokens)) & set(within(two, tokens))) <= chunking.overlap, "overlap"


SENTENCES = " ".join(f"Sentence number {i} has words, and it ends here." for i in range(30))


def test_passages_end_where_sentences_do() -> None:
    spans = cut([SENTENCES], Chunking(40, 0), TOKENIZERS["words"])[0]
    assert len(spans) > 5
    passages = [SENTENCES[span.start : span.end] for span in spans]
    assert all(passage.startswith("Sentence") and passage.endswith("here.") for passage in passages)
    assert " ".join(passages) == SENTENCES


def test_passages_end_where_paragraphs_do() -> None:
    paragraph = " ".join(["A sentence of five words."] * 4)
    text = "\n\n".join([paragraph] * 4) + "\n" + paragraph
    spans = cut([text], Chunking(40, 0), TOKENIZERS["words"])[0]
    assert [text[span.start : span.end] for span in spans][:3] == [paragraph] * 3


def test_passages_without_sentences_end_between_words() -> None:
    text = "word " * 200
    for span in cut([text], Chunking(16, 5), TOKENIZERS["parts of words"])[0]:
        assert set(text[span.start : span.end].split()) == {"word"}


def test_overlap_begins_between_words() -> None:
    words = [f"w{i}" for i in range(100)]
    spans = cut([" ".join(words)], Chunking(20, 6), TOKENIZERS["words"])[0]
    passages = [" ".join(words)[span.start : span.end].split() for span in spans]
    assert all(one[-6:] == two[:6] for one, two in pairwise(passages))


def test_a_character_of_more_tokens_than_a_passage_is_whole() -> None:
    spans = cut(["🎉" * 5], Chunking(16, 0), _pieces(r"\S", 20))[0]
    assert spans == [Span(i, i + 1) for i in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("unit", [".", " ", "a", "a. ", "\n"])
def test_strange_texts_take_time_in_proportion_to_their_length(unit: str) -> None:
    def seconds(characters: int) -> float:
        text = unit * (characters // len(unit))
        pieces = TOKENIZERS["words with their space"]([text])
        began = process_time()
        cut([text], Chunking(256, 128), lambda _: pieces)
        return process_time() - began

    long, short = (min(seconds(characters) for _ in range(5)) for characters in (80_000, 20_000))
    assert long < 16 * max(short, 0.02), "squared it would be 16 times as much, and far more"


@pytest.mark.slow
def test_the_passages_of_all_texts_are_bounded() -> None:
    """Sentences of one more token than half a passage would let the next begin a token later, again and again."""
    text = " ".join("a." for _ in range(20_000))
    spans = cut([text], Chunking(16, 8), TOKENIZERS["words"])[0]
    assert sum(span.end - span.start for span in spans) <= 5 * len(text)


@pytest.mark.parametrize(
    ("tokens", "overlap", "field"),
    [(15, None, "chunk_tokens"), (20, 11, "chunk_overlap"), (20, -1, "chunk_overlap"), (None, 3, "chunk_overlap")],
)
def test_bad_chunkings(tokens: int | None, overlap: int | None, field: str) -> None:
    with pytest.raises(Invalid, match=field):
        asked_chunking(tokens, overlap)


def test_chunkings() -> None:
    assert asked_chunking(20, 10) == (20, 10)
    assert asked_chunking(16, None) == (16, 0)
    assert asked_chunking(None, None) is None


def test_spans_are_characters_of_the_text(tiny_tokenizer: Cutter) -> None:
    text = "Größe 🎉 naïve — Ω. " * 40
    spans = cut([text], Chunking(32, 8), tiny_tokenizer)[0]
    assert len(spans) > 3
    for span in spans:
        assert len(tiny_tokenizer([text[span.start : span.end]])[0]) <= 32
    assert text[spans[-1].start : spans[-1].end].endswith("Ω.")


@pytest.fixture
def tiny_tokenizer(tmp_path: Path) -> Cutter:
    """A byte-level tokenizer, some of whose tokens are parts of a character."""
    from tokenizers import Tokenizer as Fast
    from tokenizers import models, pre_tokenizers

    from models.bundle.tokenizer import Tokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Fast(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", max_length=64)
    return lambda texts: tokenizer.pieces(texts, special_tokens=False)
