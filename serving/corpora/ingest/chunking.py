"""Chunking of long texts into overlapping passages of limited length.

If possible, a passage ends with a paragraph or a sentence.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from models.bundle.tokenizer import Piece
from serving.corpora.values import Chunking, Span
from serving.errors import Invalid

Pieces = Callable[[Sequence[str]], list[list[Piece]]]
"""Function that returns all tokens of each text with their positions in the text, without special tokens."""
MIN_TOKENS = 16
ADVANCE = 4
"""Divisor of the passage length. Two passages begin at least `tokens / ADVANCE` tokens apart. All passages of a text
together therefore have at most `ADVANCE` times the tokens of the text."""
_SENTENCES = re.compile(r"""[.!?…]++["'”’»)\]]*+|[。！？]++[」』”’）]*+|\n""")
_PARAGRAPHS = re.compile(r"\n[^\S\n]*+\n")
_WORDS = re.compile(r"\s+")


def asked_chunking(tokens: int | None, overlap: int | None) -> Chunking | None:
    """Return the requested chunking, or None if texts are not split.

    Raises:
        Invalid: `tokens` is too small, `overlap` is negative or more than half of `tokens`, or `overlap` is given
            without `tokens`.
    """
    if tokens is None:
        if overlap is not None:
            raise Invalid("is only allowed together with chunk_tokens", field="chunk_overlap")
        return None
    if tokens < MIN_TOKENS:
        raise Invalid(f"must be at least {MIN_TOKENS}", field="chunk_tokens")
    if not 0 <= (overlap or 0) <= tokens // 2:
        raise Invalid(f"must be between 0 and half of chunk_tokens, {tokens // 2}", field="chunk_overlap")
    return Chunking(tokens, overlap or 0)


def cut(texts: Sequence[str], chunking: Chunking, pieces: Pieces) -> list[list[Span]]:
    """Return the passages of each text, in order. A text of up to `chunking.tokens` tokens is one passage.

    A passage has at most `chunking.tokens` tokens. If possible, it ends at the last blank line in the second half of
    these tokens. If this half has no blank line, the passage ends at the last sentence end in this half. If this half
    has no sentence end either, the passage ends between two words or, if that is impossible, between two tokens. A
    passage never ends within a character. If a single character has more than `chunking.tokens` tokens, the passage
    consists of this character.

    A passage begins between two words if possible, at most `chunking.overlap` tokens before the end of the previous
    passage. Only white space between passages is lost.

    Tokens are counted in the whole text. If a passage ends within a word, a tokenizer may count a few more or fewer
    tokens for the passage alone.

    Time is linear in the length of a text.
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
            spans.pop()  # the new passage begins at the same word, and is longer
        if span.start < span.end and not (spans and span.end == spans[-1].end):
            spans.append(span)
        begin = end if end == len(pieces) else tokens.begin(begin, end, chunking)
    return spans or [Span(0, len(text))]


class _Tokens:
    """The tokens of a text, and the positions between tokens at which the text may be split."""

    def __init__(self, text: str, pieces: Sequence[Piece]) -> None:
        starts = [piece.start or 0 for piece in pieces]
        stops = list(accumulate((piece.stop or 0 for piece in pieces), max))
        self._count = len(pieces)
        self._length = len(text)
        # A character such as an emoji may have several tokens. The later tokens begin before the first token ends.
        self._clean = [0, *(i for i in range(1, len(pieces)) if starts[i] >= stops[i - 1])]
        self._starts = [starts[i] for i in self._clean]
        self._paragraphs = self._tokens_at(match.start() for match in _PARAGRAPHS.finditer(text))
        self._sentences = self._tokens_at(_sentence_ends(text))
        self._words = self._tokens_at(match.start() for match in _WORDS.finditer(text))

    def place(self, token: int) -> int:
        """Return the character offset at which the text is split before `token`.

        Characters that the tokenizer skips belong to the previous token.
        """
        if token == 0:
            return 0
        if token == self._count:
            return self._length
        return self._starts[bisect_left(self._clean, token)]

    def end(self, begin: int, tokens: int) -> int:
        """Return the exclusive end token of a passage of up to `tokens` tokens that begins at the token `begin`."""
        most = begin + tokens
        if most >= self._count:
            return self._count
        half = begin + tokens // 2
        for borders in (self._paragraphs, self._sentences, self._words, self._clean):
            last = bisect_right(borders, most) - 1
            if last >= 0 and borders[last] > half:
                return borders[last]
        following = bisect_right(self._clean, begin)  # a single character has more tokens than a passage may have
        last = bisect_right(self._clean, most) - 1
        place = max(last, following)
        return self._clean[place] if place < len(self._clean) else self._count

    def begin(self, before: int, end: int, chunking: Chunking) -> int:
        """Return the first token of the next passage.

        The previous passage begins at the token `before`, and its exclusive end token is `end`.
        """
        least = max(end - chunking.overlap, before + max(1, chunking.tokens // ADVANCE))
        for borders in (self._words, self._clean):
            first = bisect_left(borders, least)
            if first < len(borders) and borders[first] < end:
                return borders[first]
        return end

    def _tokens_at(self, places: Iterable[int]) -> list[int]:
        """Convert character offsets to the indexes of tokens before which the text may be split.

        Each offset in `places` becomes the first of these tokens that begins at the offset or after it, if there is
        one. The indexes are sorted and distinct.
        """
        found = (bisect_left(self._starts, place) for place in places)
        return sorted({self._clean[i] for i in found if i < len(self._clean)})


def _sentence_ends(text: str) -> Iterator[int]:
    """Yield the character offsets of sentence ends and line ends.

    The full-width marks `。`, `！` and `？` always end a sentence. The marks `.`, `!`, `?` and `…` end a sentence only
    before white space. Closing quotes and brackets after a mark belong to the sentence.
    """
    for match in _SENTENCES.finditer(text):
        if match[0] == "\n":
            yield match.start()
        elif match[0][0] in "。！？" or text[match.end() : match.end() + 1].isspace():
            yield match.end()


def _stripped(text: str, start: int, end: int) -> Span:
    part = text[start:end].lstrip()
    start = end - len(part)
    return Span(start, start + len(part.rstrip()))
