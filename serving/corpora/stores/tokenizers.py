"""FTS5's tokenizer, applied to texts outside of an index."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from serving.corpora.ports import Span, Stemming

_CONTROL = re.compile("[\0-\2]")
_UNICODE = "unicode61 remove_diacritics 2 categories 'L* M* N* So Co'"
"""FTS5's tokenizer, with Unicode's categories of word characters. Marks (M*) are part of Indic words. Symbols (So) are
included for emoji, because `analysis` keeps no other symbols."""
TOKENIZERS: dict[Stemming, str] = {
    "none": f'tokenize = "{_UNICODE}"',
    "porter": f'tokenize = "porter {_UNICODE}"',
}


class _InMemory(sqlite3.Connection):
    """A connection that closes itself when it is deleted, for example after its thread has ended."""

    def __del__(self) -> None:
        self.close()


class Tokenizer(threading.local):
    """FTS5's tokenizer, used through a table in memory that contains one text at a time."""

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
        """Return the spans of `text` where `expression` matches."""
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
    """Return the spans between the marks. Positions are counted in characters of the text without marks."""
    borders = [found.start() - i for i, found in enumerate(re.finditer("[\1\2]", marked))]
    return [Span(*border) for border in zip(borders[::2], borders[1::2], strict=True)]


tokenizers: dict[Stemming, Tokenizer] = {stemming: Tokenizer(stemming) for stemming in TOKENIZERS}
bulk_tokenizer = Tokenizer("none")
"""Tokenizer for many texts at a time. FTS5's hash table never shrinks, and would slow down the tokenizers of one text.
"""
