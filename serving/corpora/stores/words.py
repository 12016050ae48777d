"""Word search with BM25, by an FTS5 index of passages. The index stores keys but no text.

`analysis` and FTS5's tokenizer unicode61 define words. A word is a run of letters and digits, ignoring case and
diacritics. In scripts without spaces, a word is a pair of characters. With stemming, words of the same stem are the
same word. Scores are FTS5's BM25 with k1 = 1.2 and b = 0.75 (https://www.sqlite.org/fts5.html, section 5.1.1), with the
sign inverted. A column of the index has the passages, and each further column has a metadata field with a weight.

A query is expanded before the search. Synonyms, and completions of the last word, are further terms of the query.
A correction is similar to a word of the query, and always counts less than the word.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import orjson

from serving.corpora.filters import texts_at
from serving.corpora.ports import MAX_MARKED, Ranking
from serving.corpora.stores import analysis, corrections
from serving.corpora.stores.analysis import TOKENIZERS, bulk_tokenizer, tokenizers
from serving.corpora.stores.fields import numbers
from serving.corpora.stores.queries import PLAIN, Asked, Rules, Term, expression
from serving.corpora.values import Keys, Span, Stemming
from serving.operations.threads import check_cancelled

MARKED_AT_ONCE = 2_000
"""Minimum number of characters by which `highlights` extends the searched prefix of a text in each step."""
MAX_SPANS = 200
"""Maximum number of highlights of a text. Later matches are ignored."""
MARKS = 1 << 26
"""Maximum bytes of the mask of allowed keys, which has one byte for each key. In a corpus with greater keys, most
passages were replaced, and a list of keys takes less memory than a mask."""
CORRECTED = 0.5
"""Weight of a correction."""
TOGETHER = 256
"""Number of passages that are indexed in one step."""
K1 = 1.2
RARE = (K1 + 1) * 2
"""Threshold of rare terms. A term is rare if its maximum contribution to a BM25 score is at least this number. A term
with exactly this contribution occurs in about one of eight passages."""
IndexedRow = tuple[Any, ...]
"""Key of a passage, its text, and the text of each searched field."""


def create(writer: sqlite3.Connection, rules: Rules = PLAIN) -> None:
    """Create an empty word index. An existing word index is replaced."""
    writer.execute("DROP TABLE IF EXISTS words")
    writer.execute(_table(rules))


def index(writer: sqlite3.Connection, rows: Iterable[IndexedRow], rules: Rules = PLAIN) -> None:
    """Add new passages to the index, and their words to the vocabulary."""
    columns, values = _columns(rules), ", ".join("?" * (2 + len(rules.weights)))
    rows = iter(rows)
    while some := [*_indexed(islice(rows, TOGETHER))]:
        writer.executemany(f"INSERT INTO words (rowid, {columns}) VALUES ({values})", some)
        corrections.add(writer, bulk_tokenizer.distinct_words(text for _, *texts in some for text in texts))


def remove(writer: sqlite3.Connection, rows: Iterable[IndexedRow], rules: Rules = PLAIN) -> None:
    """Remove passages from the index. If a text in `rows` is not the indexed text, the index becomes wrong."""
    columns, values = _columns(rules), ", ".join("?" * (2 + len(rules.weights)))
    writer.executemany(f"INSERT INTO words (words, rowid, {columns}) VALUES ('delete', {values})", _indexed(rows))


def clear(writer: sqlite3.Connection) -> None:
    """Delete all content of the index and of the vocabulary.

    FTS5 keeps a record of each earlier removal until it merges the segments of the index. These records are deleted,
    too.
    """
    writer.execute("INSERT INTO words (words) VALUES ('delete-all')")
    writer.execute("DELETE FROM vocabulary")


def optimize(writer: sqlite3.Connection) -> None:
    """Merge the index into one segment. This takes a twentieth of the time of indexing."""
    writer.execute("INSERT INTO words (words) VALUES ('optimize')")


def searched_texts(metadata: Mapping[str, Any], rules: Rules) -> list[str]:
    """Return the text of each searched field. Each element of a list becomes a line."""
    return ["\n".join(texts_at(metadata, path)) for path in rules.weights]


def check(connection: sqlite3.Connection, rules: Rules) -> list[str]:
    """Return a line for each defect of the word index.

    The index must have the stemming and the fields of `rules`, and the keys of the table `passages`.

    The connection must be allowed to write, because FTS5's own check is an INSERT, although it changes nothing.
    """
    made = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'words'").fetchone()
    if made is None:
        return ["words: no such table"]
    expected = f"the stemming {rules.stemming!r} and the fields {[*rules.weights]}"
    wrong = [] if made == (_table(rules),) else [f"words: not indexed with {expected}"]
    try:
        connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    except sqlite3.DatabaseError as error:
        wrong.append(f"words: {error}")
    keys, indexed = "SELECT key FROM passages", "SELECT id FROM words_docsize"
    for left, right, what in ((keys, indexed, "without words"), (indexed, keys, "of no passage")):
        ((count,),) = connection.execute(f"SELECT count(*) FROM ({left} EXCEPT {right})")
        wrong += [f"words: {count} passages {what}"] * bool(count)
    return wrong


def search(
    reader: sqlite3.Connection, asked: Asked, k: int, allowed: Keys | None = None, rules: Rules = PLAIN
) -> Ranking:
    """Return the best `k` passages; see `Store.words`. If `allowed` is given, only these sorted keys are searched.

    Scoring a passage takes far longer than finding it. Therefore, only the passages with a rare term are scored at
    first. All other passages are skipped if none of them can reach the best `k` of these scores (MaxScore: Turtle and
    Flood, Query evaluation: strategies and optimizations, 1995). The ranking is exact.

    Call this function in a transaction, because its reads must see one snapshot.
    """
    terms = asked.terms
    if asked.phrases:
        allowed = _common(allowed, _having(reader, asked.phrases, "AND"))
    if asked.corrections:
        return _best(reader, [(expression(terms, "OR"), None), *_capped(reader, asked, rules)], k, allowed, rules)
    whole = [(expression(terms, "OR"), None)] if terms else []
    most = _most_each_adds(reader, terms)
    rare = [term for term in terms if most[term] >= RARE]
    if 0 < len(rare) < len(terms):
        having_rare = _common(allowed, _having(reader, rare, "OR"))
        if 0 < k <= len(having_rare):
            ranking = _best(reader, whole, k, having_rare, rules)
            if ranking.scores[-1] > sum(most[term] for term in terms if term not in rare):
                return ranking
    return _best(reader, whole, k, allowed, rules)


def having(reader: sqlite3.Connection, asked: Asked, allowed: Keys | None) -> Keys:
    """Return the sorted keys of all passages that match the query `asked`.

    A passage matches if it has every quoted phrase, and at least one of the terms or their corrections. If
    `allowed` is given, only passages with these sorted keys are returned.
    """
    if asked.phrases:
        allowed = _common(allowed, _having(reader, asked.phrases, "AND"))
    return _common(allowed, _having(reader, asked.matching, "OR")) if asked.terms else np.empty(0, np.int64)


def highlights(texts: Sequence[str], terms: Sequence[Term], stemming: Stemming) -> list[list[Span]]:
    """Return for each of `texts` the spans that match `terms`.

    Only the first `MAX_MARKED` characters of a text are searched. At most `MAX_SPANS` spans of a text are returned.
    """
    if not terms:
        return [[] for _ in texts]
    asked = expression([tuple(analysis.split_phrase(term)) for term in terms], "OR", single_as_prefix=False)
    return [_highlights(text[:MAX_MARKED], asked, stemming) for text in texts]


def _highlights(text: str, asked: str, stemming: Stemming) -> list[Span]:
    """Return the first `MAX_SPANS` spans of `text` that match the FTS5 query `asked`.

    Growing prefixes of the text are searched until enough spans are found. This bounds the time, because FTS5 takes
    time quadratic in the number of highlights.
    """
    check_cancelled()
    spread = analysis.spread(text)
    found: list[Span] = []
    step = max(MARKED_AT_ONCE, len(spread.text) // 4)
    for end in range(step, len(spread.text) + step, step):
        found = tokenizers[stemming].highlights(spread.text[:end], asked)
        if len(found) > MAX_SPANS:
            break
    return found[:MAX_SPANS] if spread.text is text else spread.origins(found[:MAX_SPANS])


def _indexed(rows: Iterable[IndexedRow]) -> Iterator[IndexedRow]:
    return ((key, *map(analysis.indexed, texts)) for key, *texts in rows)


def _columns(rules: Rules) -> str:
    return ", ".join(["text", *(f"field{number}" for number, _ in enumerate(rules.weights, start=1))])


def _table(rules: Rules) -> str:
    return f"CREATE VIRTUAL TABLE words USING fts5({_columns(rules)}, content = '', {TOKENIZERS[rules.stemming]})"


def _score(rules: Rules) -> str:
    """Return SQL for the BM25 score of a passage. The weight of a field multiplies the counts of the field's words."""
    weights = f", 1.0, {', '.join(map(repr, rules.weights.values()))}" if rules.weights else ""
    return f"-bm25(words{weights})"


def _capped(reader: sqlite3.Connection, asked: Asked, rules: Rules) -> Iterator[tuple[str, float]]:
    """Yield, for each corrected word, the FTS5 query that finds its corrections, and the maximum score of a correction.

    The maximum is the lowest score of the word itself in any passage, so that a correction never counts more than the
    word. If no passage has the word, the maximum is infinite.
    """
    for own, corrected in asked.corrections:
        select = f"SELECT {_score(rules)} AS score FROM words WHERE words MATCH ? ORDER BY score LIMIT 1"
        (least,) = reader.execute(select, (expression(own, "OR"),)).fetchone() or (math.inf,)
        yield expression(corrected, "OR"), least


def _best(
    reader: sqlite3.Connection,
    expressions: Sequence[tuple[str, float | None]],
    k: int,
    allowed: Keys | None,
    rules: Rules,
) -> Ranking:
    """Return the best `k` passages by the sum of their scores for all `expressions`.

    Each expression is an FTS5 query, and comes with a maximum score or None. Only an expression for the corrections of
    a word of the query has a maximum (see `_capped`). The scores of such an expression are limited to its maximum, and
    then multiplied by `CORRECTED`.
    """
    if not expressions or (allowed is not None and not len(allowed)):
        return Ranking(np.empty(0, dtype=np.int64), np.empty(0))
    among, keys = _among(allowed)
    selects, values = [], list[str | bytes | float]()
    for asked, cap in expressions:
        score = _score(rules) if cap is None else f"{CORRECTED} * min(?, {_score(rules)})"
        selects.append(f"SELECT rowid, {score} AS score FROM words WHERE words MATCH ?{among}")
        values += [*([] if cap is None else [cap]), asked, *keys]
    select = selects[0]
    if len(selects) > 1:
        select = f"SELECT rowid, sum(score) AS score FROM ({' UNION ALL '.join(selects)}) GROUP BY rowid"
    found = reader.execute(f"{select} ORDER BY score DESC, rowid LIMIT ?", (*values, k)).fetchall()
    return Ranking(np.array([key for key, _ in found], np.int64), np.array([score for _, score in found], np.float64))


def _among(allowed: Keys | None) -> tuple[str, list[str | bytes]]:
    """Return an SQL condition that accepts only the keys `allowed`, and the values of its parameters.

    If `allowed` is None, the condition is empty.
    """
    if allowed is None:
        return "", []
    if allowed[-1] <= MARKS:  # a mask with one byte per key, which SQLite tests before it scores a passage
        marks = np.zeros(allowed[-1], dtype=np.uint8)
        marks[allowed - 1] = 1
        return " AND substr(?, rowid, 1) = x'01'", [marks.tobytes()]
    listed = orjson.dumps(allowed, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return " AND +rowid IN (SELECT value FROM json_each(?))", [listed]


def _having(reader: sqlite3.Connection, terms: Sequence[Term], operator: str) -> Keys:
    select = "SELECT rowid AS number FROM words WHERE words MATCH ?"
    return np.sort(numbers(reader, select, expression(terms, operator)))


def _common(allowed: Keys | None, keys: Keys) -> Keys:
    return keys if allowed is None else np.intersect1d(allowed, keys, assume_unique=True)


def _most_each_adds(reader: sqlite3.Connection, terms: Sequence[Term]) -> dict[Term, float]:
    """Return each term's maximum contribution to a BM25 score.

    The maximum is the inverse document frequency of the term, at least 1e-6, times (k1 + 1).
    """
    ((passages,),) = reader.execute("SELECT count(*) FROM words_docsize")
    most = {}
    for term in terms:
        select = "SELECT count(*) FROM words WHERE words MATCH ?"
        ((having,),) = reader.execute(select, (expression([term], "OR"),))
        most[term] = (K1 + 1) * max(1e-6, math.log((passages - having + 0.5) / (having + 0.5)))
    return most
