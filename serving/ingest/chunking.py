"""Long texts become passages: of so many tokens, overlapping by a few, ending where a sentence does if one does."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from models.tokenizer import Piece
from serving.errors import Invalid
from serving.ports import Chunking, Span

Pieces = Callable[[Sequence[str]], list[list[Piece]]]
"""Every token of each text, where it stands there, without those that the tokenizer adds."""
MIN_TOKENS = 16
ADVANCE = 4
"""A passage begins at least this part of its tokens behind the one before it: of a text all passages together hold at
most so many times the tokens, whatever it is made of."""
_SENTENCES = re.compile(r"""[.!?…]++["'”’»)\]]*+|[。！？]++[」』”’）]*+|\n""")
_WORDS = re.compile(r"\s+")


def asked_chunking(tokens: int | None, overlap: int | None) -> Chunking | None:
    """What a caller asks for; None: nothing is cut.

    Raises:
        Invalid: passages are too short, or mostly overlap.
    """
    if tokens is None:
        if overlap is not None:
            raise Invalid("goes with chunk_tokens", field="chunk_overlap")
        return None
    if tokens < MIN_TOKENS:
        raise Invalid(f"must be at least {MIN_TOKENS}", field="chunk_tokens")
    if not 0 <= (overlap or 0) <= tokens // 2:
        raise Invalid(f"must be between 0 and half of chunk_tokens, {tokens // 2}", field="chunk_overlap")
    return Chunking(tokens, overlap or 0)


def cut(texts: Sequence[str], chunking: Chunking, pieces: Pieces) -> list[list[Span]]:
    """The passages of each text, in order; one, the whole of it, if it is no longer than `chunking.tokens`.

    A passage ends where a sentence does in its second half, else between words, else between tokens: never within a
    character. It begins between words, at most `chunking.overlap` tokens before the end of the one before it. No
    character is lost but white space between passages. Tokens are those of the whole text: a passage by itself
    may have another few where it had to be cut within a word. Time is linear in the length of a text.
    """
    return [_cut(text, found, chunking) for text, found in zip(texts, pieces(texts), strict=True)]


def _cut(text: str, pieces: Sequence[Piece], chunking: Chunking) -> list[Span]:
    if len(pieces) <= chunking.tokens:
        return [Span(0, len(text))]
    tokens = _Tokens(text, pieces)
    spans, begin = list[Span](), 0
    while begin < len(pieces):
        end = tokens.end(begin, chunking.tokens)
        span = _stripped(text, tokens.place(begin), tokens.place(end))
        if spans and span.start == spans[-1].start:
            spans.pop()  # white space apart both begin here, and this one goes further
        if span.start < span.end and not (spans and span.end == spans[-1].end):
            spans.append(span)
        begin = end if end == len(pieces) else tokens.begin(begin, end, chunking)
    return spans or [Span(0, len(text))]


class _Tokens:
    """Where the tokens of a text begin, and where it may be cut between them."""

    def __init__(self, text: str, pieces: Sequence[Piece]) -> None:
        starts = [piece.start or 0 for piece in pieces]
        stops = list(accumulate((piece.stop or 0 for piece in pieces), max))
        self._count = len(pieces)
        self._length = len(text)
        # Several tokens of one character, as of an emoji in bytes, begin where the one before them has not ended.
        self._clean = [0, *(i for i in range(1, len(pieces)) if starts[i] >= stops[i - 1])]
        self._starts = [starts[i] for i in self._clean]
        self._sentences = self._tokens_at(_sentence_ends(text))
        self._words = self._tokens_at(match.start() for match in _WORDS.finditer(text))

    def place(self, token: int) -> int:
        """The character before which `token` is cut off; what the tokenizer passed over belongs to the token before."""
        if token == 0:
            return 0
        if token == self._count:
            return self._length
        return self._starts[bisect_left(self._clean, token)]

    def end(self, begin: int, tokens: int) -> int:
        """Behind the last token of the passage that begins at `begin`."""
        most = begin + tokens
        if most >= self._count:
            return self._count
        half = begin + tokens // 2
        for borders in (self._sentences, self._words, self._clean):
            last = bisect_right(borders, most) - 1
            if last >= 0 and borders[last] > half:
                return borders[last]
        following = bisect_right(self._clean, begin)  # one character of more tokens than a passage may have
        last = bisect_right(self._clean, most) - 1
        place = max(last, following)
        return self._clean[place] if place < len(self._clean) else self._count

    def begin(self, before: int, end: int, chunking: Chunking) -> int:
        """The first token of the passage after the one from `before` to `end`."""
        least = max(end - chunking.overlap, before + max(1, chunking.tokens // ADVANCE))
        for borders in (self._words, self._clean):
            first = bisect_left(borders, least)
            if first < len(borders) and borders[first] < end:
                return borders[first]
        return end

    def _tokens_at(self, places: Iterable[int]) -> list[int]:
        """The tokens that may begin a passage and are the first to begin at one of `places` or behind it."""
        found = (bisect_left(self._starts, place) for place in places)
        return sorted({self._clean[i] for i in found if i < len(self._clean)})


def _sentence_ends(text: str) -> Iterator[int]:
    """Places behind sentences, and before line ends; white space follows a full stop that is one."""
    for match in _SENTENCES.finditer(text):
        if match[0] == "\n":
            yield match.start()
        elif match[0][0] in "。！？" or text[match.end() : match.end() + 1].isspace():
            yield match.end()


def _stripped(text: str, start: int, end: int) -> Span:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return Span(start, end)
