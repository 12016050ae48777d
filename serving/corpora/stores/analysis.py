"""Text normalization and segmentation before FTS5's tokenizer, and the use of this tokenizer without an index.

FTS5's tokenizer neither folds look-alike characters nor splits scripts without spaces into words.

Characters that look alike are folded to the same character. Compatibility forms, case and ignorable characters follow
Unicode's NFKC_Casefold (https://www.unicode.org/reports/tr44/#NFKC_Casefold). Each emoji is a word. Other symbols are
not part of words, except for the radicals of Chinese characters. ASCII text stays unchanged.

A run of characters of a script without spaces becomes overlapping pairs, as in Lucene's CJKAnalyzer. The last character
of the run is also a token of its own. Every character therefore begins exactly one token, so a query of one character
is searched as a prefix.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from operator import add
from typing import NamedTuple
from unicodedata import category, combining, decomposition, normalize

from models.writing_systems import UNSPACED
from serving.corpora.values import Span, Stemming

_MOST_MARKS = 30
"""Maximum combining marks on one character, from https://www.unicode.org/reports/tr15/#Stream_Safe_Text_Format.
Unicode normalization takes time quadratic in the number of marks."""
_UNSPACED = (
    # Hangul separates words by spaces, but attaches endings to words.
    UNSPACED + "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff\U0001f1e6-\U0001f1ff"  # regional indicators: halves of flags
)
_CHARACTER, _RUN = re.compile(f"[{_UNSPACED}]"), re.compile(f"[{_UNSPACED}]+")
_STRETCH = re.compile("[\x00-\x7f]?[^\x00-\x7f]+")
"""Pattern of a stretch of non-ASCII characters, which is folded as a unit. An ASCII character directly before these
characters is part of the stretch, because a combining mark may follow it."""
_SHORT = 8
"""Maximum characters of a stretch whose folding is cached. Short stretches, such as accented letters, are frequent."""
_MANY_SIGNS = re.compile(rf"[^\w\x00-\x7f]{{{_MOST_MARKS + 1},}}")
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\U0001f3fb-\U0001f3ff]"
)
"""Pattern of characters that are removed: Unicode's Default_Ignorable_Code_Point and the skin-tone modifiers."""
_PART = re.compile("[\u2e80-\u2fdf\U0001f1e6-\U0001f1ff]")
"""Pattern of symbols that are parts of words: the letters of flag emoji, and radicals. Text copied from a PDF has
radicals in place of characters."""
_RUN_END = "\u2300\u2300"
"""Token that marks the end of a run. Folding never produces it, because folding puts a space between two symbols."""
_PICTOGRAPH = re.compile("[\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]")


def indexed(text: str) -> str:
    """Fold a passage or a query, and split scripts without spaces into pairs of characters, for FTS5's tokenizer."""
    return text if text.isascii() else _RUN.sub(_pairs, _folded(text))


class Spread(NamedTuple):
    """A folded text, and the places from which its characters come in the original text.

    Character i of `text` comes from the span of the original text that begins at `starts[i]` and ends at `ends[i]`.
    """

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    def origins(self, spans: Iterable[Span]) -> list[Span]:
        """Map sorted `spans` of `text`, which is folded, to spans of the original text.

        Spans that would overlap in the original text are merged.
        """
        found: list[Span] = []
        for start, end in spans:
            origin = Span(self.starts[start], self.ends[end - 1])
            if found and origin.start < found[-1].end:
                origin = Span(found.pop().start, origin.end)
            found.append(origin)
        return found


def spread(text: str) -> Spread:
    """Fold `text`, and make each character of a script without spaces, such as Chinese, a word of its own.

    The token `_RUN_END` is added after each run of such characters. `split_phrase` splits the phrases of a query in
    the same way.
    """
    if text.isascii():
        return Spread(text, range(len(text)), range(1, len(text) + 1))
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end in _pieces(text):
        part = _folded(text[start:end])
        parts.append(part)
        one_by_one = text[start:end].isascii()
        starts += range(start, end) if one_by_one else [start] * len(part)
        ends += range(start + 1, end + 1) if one_by_one else [end] * len(part)
    folded = "".join(parts)
    spreads: list[str] = []
    order: list[int] = []
    last = 0
    for run in _RUN.finditer(folded):
        spreads += [folded[last : run.start()], *(f" {character}" for character in run[0]), f" {_RUN_END} "]
        order += range(last, run.start())
        order += (place for place in range(*run.span()) for _ in range(2))
        last = run.end()
        order += [last - 1] * (len(_RUN_END) + 2)
    spreads.append(folded[last:])
    order += range(last, len(folded))
    return Spread("".join(spreads), [starts[i] for i in order], [ends[i] for i in order])


def is_character(token: str) -> bool:
    """Return whether `token` is a single character of a script without spaces."""
    return _CHARACTER.fullmatch(token) is not None


def has_unspaced(token: str) -> bool:
    """Return whether `token` has a character of a script without spaces."""
    return _CHARACTER.search(token) is not None


def ends_run(tokens: Sequence[str], at: int) -> bool:
    """Return whether `tokens[at]` is a character that `indexed` has added after pairs, such as the C in AB BC C.

    A run is a sequence of characters of a script without spaces, such as Chinese. `indexed` replaces each run by its
    overlapping pairs and its last character. For example, a run ABC becomes AB BC C.
    """
    return at > 0 and is_character(tokens[at]) and _is_pair(tokens[at - 1])


def split_phrase(tokens: Sequence[str]) -> list[str]:
    """Split the pairs of characters in a phrase of a query into single characters.

    `spread` splits passages in the same way, so the phrase can be found in them. As in `spread`, `_RUN_END` follows
    each run of characters of a script without spaces. However, a run at the end of the phrase gets no `_RUN_END`,
    because in a passage this run may be longer.
    """
    found: list[str] = []
    for token in tokens:
        found += [token[0]] if _is_pair(token) else [token, _RUN_END] if is_character(token) else [token]
    if _is_pair(tokens[-1]):
        return [*found, tokens[-1][1]]
    return found[:-1] if is_character(tokens[-1]) else found


def _is_pair(token: str) -> bool:
    return len(token) == 2 and _RUN.fullmatch(token) is not None


def _pairs(run: re.Match[str]) -> str:
    characters = run[0]
    return f" {' '.join(map(add, characters, characters[1:]))} {characters[-1]} "


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the parts of `text` that are folded separately.

    A part is a sequence of ASCII characters, or a character with its combining marks.
    """
    last = 0
    for stretch in _STRETCH.finditer(text):
        borders = [i for i in range(*stretch.span()) if i == stretch.start() or not _joins(text[i])]
        yield last, stretch.start()
        yield from pairwise([*borders, stretch.end()])
        last = stretch.end()
    yield last, len(text)


@lru_cache(1 << 14)
def _joins(character: str) -> bool:
    first = _folded(character)[:1]
    return not first or "M" in category(character) + category(first) or "\u1160" <= first <= "\u11ff"


def _folded(text: str) -> str:
    return _STRETCH.sub(_folded_stretch, text)


def _folded_stretch(stretch: re.Match[str]) -> str:
    found = stretch[0]
    return _fold_short(found) if len(found) <= _SHORT else _fold_long(found)


def _fold_long(text: str) -> str:
    composed = normalize("NFC", _with_few_marks(text))
    return normalize("NFC", _with_few_marks(composed.translate(_FOLDED)))


_fold_short = lru_cache(1 << 14)(_fold_long)


def _with_few_marks(text: str) -> str:
    return _MANY_SIGNS.sub(_with_spaces_for_marks, text)


def _with_spaces_for_marks(signs: re.Match[str]) -> str:
    marks, kept = 0, []
    for sign in signs[0]:
        marks = marks + 1 if combining(sign) else 0
        kept.append(sign if marks <= _MOST_MARKS else " ")
    return "".join(kept)


class _Folded(dict[int, str]):
    """Table for `str.translate` that folds characters and caches the results."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        folded = _fold(character)
        if category(character) not in ("Cn", "Co"):
            self[code] = folded
        return folded


_FOLDED = _Folded()


def _fold(character: str) -> str:
    if character.isascii():
        return character
    if _IGNORABLE.match(character) or _is_accent(character):
        return ""
    if _is_in_words(character):
        return _casefolded(character)
    if category(character) == "So" and _PICTOGRAPH.match(character):
        return f" {character} "
    return re.sub(r"\W", " ", f" {_casefolded(character)} ")


def _casefolded(character: str) -> str:
    return normalize("NFKC", normalize("NFKC", character).casefold())


def _is_accent(character: str) -> bool:
    """Return whether `character` is a combining mark that search ignores.

    For example, search ignores the vowel marks of Hebrew and Arabic, but not those of Indic scripts.
    """
    place = combining(character)
    return category(character) == "Me" or (
        not is_character(character) and (place in (1, *range(10, 36)) or place >= 200)
    )


def _is_in_words(character: str) -> bool:
    """Return whether `character` can be part of a word.

    Fractions and circled numbers are not part of words, because they would merge with a neighbouring number.
    """
    kind, made_of = category(character), decomposition(character)
    if kind == "No":
        return not made_of or made_of.startswith(("<sub>", "<super>"))
    return kind[0] in "LM" or kind in ("Nd", "Nl", "Cn", "Co") or _PART.match(character) is not None


# The following classes apply FTS5's tokenizer to texts that are not in an index.

_CONTROL = re.compile("[\0-\2]")
_UNICODE = "unicode61 remove_diacritics 2 categories 'L* M* N* So Co'"
"""FTS5's tokenizer, with Unicode's categories of word characters. Marks (M*) are part of Indic words. Symbols (So) are
included for emoji and radicals. `indexed` removes all other symbols."""
TOKENIZERS: dict[Stemming, str] = {
    "none": f'tokenize = "{_UNICODE}"',
    "porter": f'tokenize = "porter {_UNICODE}"',
}


class _InMemory(sqlite3.Connection):
    """A connection that closes itself when it is deleted, for example after its thread has ended."""

    def __del__(self) -> None:
        self.close()


class Tokenizer(threading.local):
    """FTS5's tokenizer, used through a table in memory. The table contains only the texts of the current call."""

    def __init__(self, stemming: Stemming) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=_InMemory)
        self._connection.text_factory = _decoded
        self._connection.execute(f"CREATE VIRTUAL TABLE one USING fts5(text, {TOKENIZERS[stemming]})")
        self._connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(one, instance)")
        self._connection.execute("CREATE VIRTUAL TABLE distinct_words USING fts5vocab(one, row)")

    def words(self, text: str) -> list[str]:
        with self._holding(text):
            return [word for (word,) in self._connection.execute("SELECT term FROM vocabulary ORDER BY offset")]

    def distinct_words(self, texts: Iterable[str]) -> list[str]:
        with self._holding(*texts):
            return [word for (word,) in self._connection.execute("SELECT term FROM distinct_words")]

    def highlights(self, text: str, expression: str) -> list[Span]:
        """Return the spans of `text` that match the FTS5 query `expression`."""
        with self._holding(_CONTROL.sub(" ", text)):  # control characters are never part of a word
            marked = self._connection.execute(
                "SELECT highlight(one, 0, char(1), char(2)) FROM one WHERE one MATCH ?", (expression,)
            ).fetchone()
        return _spans(marked[0]) if marked else []

    @contextmanager
    def _holding(self, *texts: str) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            self._connection.executemany("INSERT INTO one (text) VALUES (?)", ((text,) for text in texts))
            yield
        finally:
            self._connection.execute("ROLLBACK")


def _decoded(text: bytes) -> str:
    """Decode a word. FTS5 cuts words after 32,768 bytes, so the last character may be incomplete."""
    return text.decode(errors="ignore")


def _spans(marked: str) -> list[Span]:
    """Return the spans between U+0001 and U+0002 in `marked`, as positions in the text without these characters."""
    borders = [found.start() - i for i, found in enumerate(re.finditer("[\1\2]", marked))]
    return [Span(*border) for border in zip(borders[::2], borders[1::2], strict=True)]


tokenizers: dict[Stemming, Tokenizer] = {stemming: Tokenizer(stemming) for stemming in TOKENIZERS}
bulk_tokenizer = Tokenizer("none")
"""Separate tokenizer for calls with many texts. Such a call makes later calls of the same tokenizer slow, because
FTS5's hash table never shrinks."""
