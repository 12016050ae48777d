"""Word search with BM25, by an FTS5 index of passages. The index stores keys but no text.

`analysis` and FTS5's tokenizer unicode61 define words. A word is a run of letters and digits, ignoring case and
diacritics. In scripts without spaces, a word is a pair of characters. With stemming, words of the same stem are the
same word. Scores are FTS5's BM25 with k1 = 1.2 and b = 0.75 (https://www.sqlite.org/fts5.html, section 5.1.1), with the
sign inverted.
"""

from __future__ import annotations

import math
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import orjson

from serving.corpora.ports import MAX_MARKED, Keys, Ranking, Span, Stemming
from serving.corpora.stores import analysis
from serving.corpora.stores.fields import numbers
from serving.operations.threads import check_cancelled

MAX_WORDS = 64
"""Maximum words of a query that are searched for, including words in phrases. Later words are ignored."""
MAX_ASKED = 20_000
"""Maximum characters of a query that are parsed."""
MARKED_AT_ONCE = 2_000
"""Number of characters at the beginning of a text that `highlights` searches first."""
MAX_SPANS = 200
"""Maximum number of highlights of a text. Later matches are ignored."""
MARKS = 1 << 26
"""Maximum bytes of the mask of allowed keys. A mask would be larger only if most passages were replaced. A list of
keys then takes less memory."""
K1 = 1.2
RARE = (K1 + 1) * 2
"""Minimum contribution of a rare term to a BM25 score. A term with this contribution occurs in about one of eight
passages."""
_CONTROL = re.compile("[\0-\2]")
_UNICODE = "unicode61 remove_diacritics 2 categories 'L* M* N* So Co'"
"""FTS5's tokenizer, with Unicode's categories of word characters. Marks (M*) are part of Indic words. Symbols (So) are
included for emoji, because `analysis` keeps no other symbols."""
_TOKENIZERS: dict[Stemming, str] = {
    "none": f'tokenize = "{_UNICODE}"',
    "porter": f'tokenize = "porter {_UNICODE}"',
}

_Term = tuple[str, ...]
"""A word, or the words of a phrase. Words are not stemmed, because FTS5 stems them. A second stemming may change a
stem."""


class Asked(NamedTuple):
    """A parsed query."""

    terms: list[_Term]
    phrases: list[_Term]
    """The terms that must occur in a passage."""


def create(writer: sqlite3.Connection, stemming: Stemming = "none") -> None:
    """Create an empty word index. An existing word index is replaced."""
    writer.execute("DROP TABLE IF EXISTS words")
    writer.execute(_table(stemming))


def index(writer: sqlite3.Connection, rows: Iterable[tuple[int, str]]) -> None:
    """Add new passages to the index. `rows` has the key and the text of each passage."""
    writer.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", _indexed(rows))


def remove(writer: sqlite3.Connection, rows: Iterable[tuple[int, str]]) -> None:
    """Remove passages from the index. Texts must equal those given to `index`, or the index becomes wrong."""
    writer.executemany("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", _indexed(rows))


def clear(writer: sqlite3.Connection) -> None:
    """Clear the index. This also frees FTS5's records of removals, which would stay until FTS5 merges them."""
    writer.execute("INSERT INTO words (words) VALUES ('delete-all')")


def check(connection: sqlite3.Connection, *, stemming: Stemming) -> list[str]:
    """Return a line for each defect of the word index.

    The index must have the given `stemming` and the keys of `passages`.

    The connection must be allowed to write, because FTS5's own check is an INSERT, which changes nothing.
    """
    made = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'words'").fetchone()
    if made is None:
        return ["words: no such table"]
    wrong = [] if made == (_table(stemming),) else [f"words: not indexed with the stemming {stemming!r}"]
    try:
        connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        wrong.append(f"words: {error}")
    keys, indexed = "SELECT key FROM passages", "SELECT id FROM words_docsize"
    for left, right, what in ((keys, indexed, "without words"), (indexed, keys, "of no passage")):
        ((count,),) = connection.execute(f"SELECT count(*) FROM ({left} EXCEPT {right})")
        wrong += [f"words: {count} passages {what}"] * bool(count)
    return wrong


def search(
    reader: sqlite3.Connection, query: str, k: int, allowed: Keys | None = None, *, stemming: Stemming
) -> Ranking:
    """Return the best `k` passages; see `Store.words`. If `allowed` is given, only these sorted keys are searched.

    The index was made with `stemming`. Only the first `MAX_WORDS` words of a query count, and each term once. Scoring a
    passage takes far longer than finding it, so passages with a rare term are scored first. Usually no passage without
    a rare term can reach these scores. Passages without a rare term are then skipped (MaxScore: Turtle and Flood, Query
    evaluation: strategies and optimizations, 1995). The ranking is exact. Call it in a transaction, because its reads
    must see one snapshot.
    """
    terms, phrases = parse(query, stemming=stemming)
    if phrases:
        allowed = _common(allowed, _having(reader, phrases, "AND"))
    most = _most_each_adds(reader, terms)
    rare = [term for term in terms if most[term] >= RARE]
    if 0 < len(rare) < len(terms):
        having_rare = _common(allowed, _having(reader, rare, "OR"))
        if 0 < k <= len(having_rare):
            ranking = _best(reader, terms, k, having_rare)
            if ranking.scores[-1] > sum(most[term] for term in terms if term not in rare):
                return ranking
    return _best(reader, terms, k, allowed)


def having(reader: sqlite3.Connection, query: str, allowed: Keys | None, *, stemming: Stemming) -> Keys:
    """Return the sorted keys of all passages that `search` chooses from."""
    terms, phrases = parse(query, stemming=stemming)
    if phrases:
        allowed = _common(allowed, _having(reader, phrases, "AND"))
    return _common(allowed, _having(reader, terms, "OR")) if terms else np.empty(0, np.int64)


def parse(query: str, *, stemming: Stemming) -> Asked:
    """Parse any text as a query. Words in double quotes must occur as a phrase. All other words are optional.

    Only the first of several terms with the same stems is used.
    """
    terms: dict[_Term, _Term] = {}
    required: set[_Term] = set()
    left = MAX_WORDS
    parts = query[:MAX_ASKED].split('"', 2 * MAX_WORDS)
    for i, part in enumerate(parts):
        prepared = analysis.indexed(part)
        words = _tokenizers["none"].words(prepared)
        stems = words if stemming == "none" else _tokenizers[stemming].words(prepared)
        quoted = i % 2 == 1 and i + 1 < len(parts)  # the last quote may be unpaired
        # A run of the query may continue in a passage, so the end of the run is dropped. Inside a phrase, another word
        # follows.
        ends = range(len(words) - 1 if quoted else 0, len(words))
        kept = [at for at in range(len(words)) if not (at in ends and analysis.ends_run(words, at))][:left]
        left -= len(kept)
        groups = [kept] if quoted else [[at] for at in kept]
        for group in groups:
            stem = tuple(stems[at] for at in group)
            terms.setdefault(stem, tuple(words[at] for at in group))
            if quoted:
                required.add(stem)
    terms.pop((), None)
    return Asked(list(terms.values()), [term for stem, term in terms.items() if stem in required])


def tokens(text: str, *, stemming: Stemming) -> list[str]:
    """Return the words of a text as the index contains them, in order."""
    return _tokenizers[stemming].words(analysis.indexed(text))


def highlights(texts: Sequence[str], query: str, *, stemming: Stemming) -> list[list[Span]]:
    """Return for each of `texts` the spans that match terms of `query`.

    Only the first `MAX_MARKED` characters of a text are searched. At most `MAX_SPANS` spans of a text are returned.
    """
    terms = parse(query, stemming=stemming).terms
    if not terms:
        return [[] for _ in texts]
    asked = _expression([tuple(analysis.split_phrase(term)) for term in terms], "OR", prefixes=False)
    return [_highlights(text[:MAX_MARKED], asked, stemming) for text in texts]


def _highlights(text: str, expression: str, stemming: Stemming) -> list[Span]:
    """Search growing prefixes of the text until `MAX_SPANS` spans are found.

    FTS5 takes time quadratic in the number of marks.
    """
    check_cancelled()
    spread = analysis.spread(text)
    found: list[Span] = []
    step = max(MARKED_AT_ONCE, len(spread.text) // 4)
    for end in range(step, len(spread.text) + step, step):
        found = _tokenizers[stemming].highlights(spread.text[:end], expression)
        if len(found) > MAX_SPANS:
            break
    return found[:MAX_SPANS] if spread.text is text else spread.origins(found[:MAX_SPANS])


def _indexed(rows: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    return ((key, analysis.indexed(text)) for key, text in rows)


def _table(stemming: Stemming) -> str:
    return f"CREATE VIRTUAL TABLE words USING fts5(text, content = '', {_TOKENIZERS[stemming]})"


class _InMemory(sqlite3.Connection):
    """A connection that closes itself when it is deleted, for example after its thread has ended."""

    def __del__(self) -> None:
        self.close()


class _Tokenizer(threading.local):
    """FTS5's tokenizer, used through a table in memory that contains one text at a time."""

    def __init__(self, stemming: Stemming) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=_InMemory)
        self._connection.text_factory = _decoded
        self._connection.execute(f"CREATE VIRTUAL TABLE one USING fts5(text, {_TOKENIZERS[stemming]})")
        self._connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(one, instance)")

    def words(self, text: str) -> list[str]:
        with self._holding(text):
            return [word for (word,) in self._connection.execute("SELECT term FROM vocabulary ORDER BY offset")]

    def highlights(self, text: str, expression: str) -> list[Span]:
        """Return the spans of `text` where `expression` matches."""
        with self._holding(_CONTROL.sub(" ", text)):  # control characters are never part of a word
            marked = self._connection.execute(
                "SELECT highlight(one, 0, char(1), char(2)) FROM one WHERE one MATCH ?", (expression,)
            ).fetchone()
        return _spans(marked[0]) if marked else []

    @contextmanager
    def _holding(self, text: str) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            self._connection.execute("INSERT INTO one (text) VALUES (?)", (text,))
            yield
        finally:
            self._connection.execute("ROLLBACK")


def _decoded(text: bytes) -> str:
    """Decode a word. FTS5 cuts words after 32,768 bytes, so the last character may be incomplete."""
    return text.decode(errors="ignore")


def _expression(terms: Sequence[_Term], operator: str, *, prefixes: bool = True) -> str:
    """Join the quoted terms by `operator`. FTS5 parses no syntax within quotes, and no word contains one."""
    ends = ("*" if prefixes and analysis.is_character(term[-1]) else "" for term in terms)
    return f" {operator} ".join(f'"{" ".join(term)}"{end}' for term, end in zip(terms, ends, strict=True))


def _best(reader: sqlite3.Connection, terms: Sequence[_Term], k: int, allowed: Keys | None) -> Ranking:
    if not terms or (allowed is not None and not len(allowed)):
        return Ranking(np.empty(0, dtype=np.int64), np.empty(0))
    select = "SELECT rowid, -bm25(words) AS score FROM words WHERE words MATCH ?"
    values: list[str | bytes] = [_expression(terms, "OR")]
    if allowed is not None and allowed[-1] <= MARKS:  # a byte per key, tested before a passage is scored
        marks = np.zeros(allowed[-1], dtype=np.uint8)
        marks[allowed - 1] = 1
        select += " AND substr(?, rowid, 1) = x'01'"
        values.append(marks.tobytes())
    elif allowed is not None:
        select += " AND +rowid IN (SELECT value FROM json_each(?))"
        values.append(orjson.dumps(allowed, option=orjson.OPT_SERIALIZE_NUMPY).decode())
    found = reader.execute(f"{select} ORDER BY score DESC, rowid LIMIT ?", (*values, k)).fetchall()
    keys = np.array([key for key, _ in found], dtype=np.int64)
    return Ranking(keys, np.array([score for _, score in found], dtype=np.float64))


def _having(reader: sqlite3.Connection, terms: Sequence[_Term], operator: str) -> Keys:
    select = "SELECT rowid AS number FROM words WHERE words MATCH ?"
    return np.sort(numbers(reader, select, _expression(terms, operator)))


def _common(allowed: Keys | None, keys: Keys) -> Keys:
    return keys if allowed is None else np.intersect1d(allowed, keys, assume_unique=True)


def _most_each_adds(reader: sqlite3.Connection, terms: Sequence[_Term]) -> dict[_Term, float]:
    """Return each term's maximum contribution to a BM25 score.

    The maximum is the inverse document frequency of the term, at least 1e-6, times (k1 + 1).
    """
    ((passages,),) = reader.execute("SELECT count(*) FROM words_docsize")
    most = {}
    for term in terms:
        select = "SELECT count(*) FROM words WHERE words MATCH ?"
        ((having,),) = reader.execute(select, (_expression([term], "OR"),))
        most[term] = (K1 + 1) * max(1e-6, math.log((passages - having + 0.5) / (having + 0.5)))
    return most


def _spans(marked: str) -> list[Span]:
    """Return the spans between the marks. Positions are counted in characters of the text without marks."""
    borders = [found.start() - i for i, found in enumerate(re.finditer("[\1\2]", marked))]
    return [Span(*border) for border in zip(borders[::2], borders[1::2], strict=True)]


_tokenizers: dict[Stemming, _Tokenizer] = {stemming: _Tokenizer(stemming) for stemming in _TOKENIZERS}
