"""Words: what a query finds and in what order, held against BM25 as it is written, and that no query is an error."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.ports import Ranking
from serving.corpora.stores import corrections, words
from serving.corpora.stores.queries import MAX_WORDS, Rules, expanded, parse
from serving.corpora.values import Keys, Span, Stemming

VOCABULARY = ["a", "b", "c", "d", "é", "x1"]
texts = st.lists(st.sampled_from(VOCABULARY), min_size=0, max_size=12).map(" ".join)
corpora = st.lists(texts, max_size=12)
terms = st.lists(st.sampled_from([*VOCABULARY, "absent"]), min_size=1, max_size=3)
queries = st.tuples(terms, st.lists(terms, max_size=2))
"""Loose words, then phrases."""


@contextmanager
def indexed(*rows: str, stemming: Stemming = "none") -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE passages (key INTEGER PRIMARY KEY)")
        connection.execute(corrections.TABLE)
        words.create(connection, Rules(stemming))
        keyed = list(enumerate(rows, start=1))
        connection.executemany("INSERT INTO passages VALUES (?)", [(key,) for key, _ in keyed])
        words.index(connection, keyed)
        yield connection


def searched(
    connection: sqlite3.Connection, query: str, k: int, allowed: Keys | None = None, stemming: Stemming = "none"
) -> Ranking:
    rules = Rules(stemming)
    return words.search(connection, expanded(connection, query, rules), k, allowed, rules)


def marked(text: str, query: str, stemming: Stemming = "none") -> list[Span]:
    first, second = words.highlights([text, text], parse(query, Rules(stemming)).terms, stemming)
    assert first == second
    return first


def keys(ranking: Ranking) -> list[int]:
    return [int(key) for key in ranking.keys]


def occurrences(phrase: list[str], text: str) -> int:
    tokens = text.split()
    return sum(tokens[i : i + len(phrase)] == phrase for i in range(len(tokens)))


def bm25(rows: Mapping[int, str], loose: list[str], phrases: list[list[str]]) -> dict[int, float]:
    """Robertson's formula with the constants, and the floor below the weight of a word, of SQLite's documentation."""
    k1, b = 1.2, 0.75
    asked = {tuple(term) for term in [*([word] for word in loose), *phrases]}
    mean = sum(len(text.split()) for text in rows.values()) / len(rows) if rows else 0.0
    scores = {}
    for key, text in rows.items():
        counts = {term: occurrences(list(term), text) for term in asked}
        if not any(counts.values()) or not all(counts[tuple(phrase)] for phrase in phrases):
            continue
        length = k1 * (1 - b + b * len(text.split()) / mean)
        score = 0.0
        for term, count in counts.items():
            having = sum(occurrences(list(term), other) > 0 for other in rows.values())
            weight = max(math.log((len(rows) - having + 0.5) / (having + 0.5)), 1e-6)
            score += weight * count * (k1 + 1) / (count + length)
        scores[key] = score
    return scores


@given(
    rows=corpora,
    asked=queries,
    gone=st.sets(st.integers(1, 12), max_size=4),
    allowed=st.none() | st.sets(st.integers(1, 20)),
    rare=st.sampled_from([words.RARE, 2.5, 1.0, 0.1]),
)
def test_scores_are_bm25(
    rows: list[str], asked: tuple[list[str], list[list[str]]], gone: set[int], allowed: set[int] | None, rare: float
) -> None:
    loose, phrases = asked
    query = " ".join([*loose, *(f'"{" ".join(phrase)}"' for phrase in phrases)])
    kept = {key: text for key, text in enumerate(rows, start=1) if key not in gone}
    oracle = bm25(kept, loose, phrases)
    wanted = {key: score for key, score in oracle.items() if allowed is None or key in allowed}
    with indexed(*rows) as connection:
        words.remove(connection, [(key, text) for key, text in enumerate(rows, start=1) if key in gone])
        connection.executemany("DELETE FROM passages WHERE key = ?", [(key,) for key in gone])
        sorted_keys = None if allowed is None else np.array(sorted(allowed), dtype=np.int64)
        found = searched(connection, query, 20, sorted_keys)
        assert dict(zip(keys(found), found.scores.tolist(), strict=True)) == pytest.approx(wanted, rel=1e-6)
        assert list(found.scores) == sorted(found.scores, reverse=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(words, "RARE", rare)  # in so few passages none is
            assert keys(searched(connection, query, 2, sorted_keys)) == keys(found)[:2]
        assert words.check(connection, Rules("none")) == []


def test_equal_scores_are_ordered_oldest_first() -> None:
    with indexed("b", "a x", "b", "a y", "b", "a z", "b") as connection:
        assert keys(searched(connection, "a", 2)) == [2, 4]


def test_a_passage_full_of_common_words_may_beat_those_with_a_rare_one() -> None:
    long = "rare " + "word " * 200
    with indexed(long, long, *["common " * 4] * 12, *["other"] * 26) as connection:
        assert keys(searched(connection, "rare common", 2)) == [3, 4]
        assert keys(searched(connection, "rare common", 2, np.array([1, 2, 14]))) == [14, 1]
        assert keys(searched(connection, "rare other", 2)) == [1, 2]
        assert keys(searched(connection, "rare other", 0)) == []


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("apple", [1, 2]),
        ("APPLES", []),
        ("RESUME", [3]),
        ("re\u0301sume\u0301", [3]),
        ("apple-pie", [1, 2]),
        ('"apple pie"', [1]),
        ('"apple-pie"', [1]),
        ('"apple pie', [1, 2]),
        ('" apple pie', [1, 2]),
        ('"apple" tree', [1, 2]),
        ('"apple" "tree"', [2]),
        ('résumé "pie"', [1]),
        ('""', []),
        ('"" tree', [2]),
        ("pie AND tree", [1, 2]),
        ("NOT pie", [1]),
        ("text: tree", [2]),
        ("tree*", [2]),
        ("tre*", []),
        ("^tree", [2]),
        ("NEAR(pie tree)", [1, 2]),
        ("{text} : (tree)", [2]),
        ("+tree -pie", [1, 2]),
        ("a\0tree", [2]),
        ("你好", [4]),
        ("你", [4]),
        ("好", [4]),
        ("😀", [4]),
        ("'; DROP TABLE words; --", []),
        ("", []),
        (" \t\n", []),
    ],
)
def test_nothing_is_an_operator_but_a_phrase(query: str, found: list[int]) -> None:
    with indexed("one apple pie", "an apple's tree", "my Résumé", "你好 😀", "", "x" * 10) as connection:
        assert sorted(keys(searched(connection, query, 10))) == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("connections", [1, 2]),
        ("CONNECTED", [1, 2]),
        ("connective", [1, 2]),
        ('"running connects"', []),
        ('"connection runs"', [2]),
        ('"connected runs" adoptee', [2]),
        ("adoptee", [3]),  # its stem is adopte, of which the stem is adopt
        ("adopting", [4]),
        ("abused", [5]),
        ("résumés", [6]),
        ("run running runs", [2]),
    ],
)
def test_words_of_one_stem_are_one_word(query: str, found: list[int]) -> None:
    rows = "they connect", "a connecting run", "adoptees", "adopted", "abuse", "My RÉSUMÉ"
    with indexed(*rows, stemming="porter") as connection:
        assert sorted(keys(searched(connection, query, 10, stemming="porter"))) == found
        words.remove(connection, list(enumerate(rows, start=1)))
        connection.execute("DELETE FROM passages")
        assert words.check(connection, Rules("porter")) == []
        assert words.check(connection, Rules("none")) == [
            "words: not indexed with the stemming 'none' and the fields []"
        ]


def test_words_of_one_stem_are_asked_for_once() -> None:
    rows = ["connect", "other words here", "more of them"]
    with indexed(*rows, stemming="porter") as connection:
        one = searched(connection, "connected", 10, stemming="porter")
        many = searched(connection, "connected connection connects", 10, stemming="porter")
        assert one.scores.tolist() == many.scores.tolist()
    assert parse('connects "connected" other', Rules("porter")) == (
        [("connects",), ("other",)],
        [("connects",)],
        ["connects", "other"],
        "other",
        (),
    )


def test_stems_are_told_where_they_stand() -> None:
    text = "Connecting adoptees: a connection"
    found = marked(text, "connected adoptee", "porter")
    assert [text[span.start : span.end] for span in found] == ["Connecting", "adoptees", "connection"]


syntax = st.lists(
    st.sampled_from(
        ["AND", "OR", "NOT", "NEAR", '"', '""', "'", "*", "^", ":", "(", ")", "{", "}", "+", "-", ",", "\0"]
    )
    | st.sampled_from(["text", "a", "é", " ", "😀", "\\", "%", "--", ";", "NEAR(a b, 2)", "\ufffe", "\u0301"])
    | st.text(max_size=3)
).map("".join)


@given(query=syntax | st.text(), text=syntax | st.text(), stemming=st.sampled_from(["none", "porter"]))
def test_any_text_is_a_query(query: str, text: str, stemming: Stemming) -> None:
    with indexed(text, "a b", stemming=stemming) as connection:
        found = searched(connection, query, 10, stemming=stemming)
        assert np.isfinite(found.scores).all()
        for span in marked(text, query, stemming):
            assert 0 <= span.start < span.end <= len(text)
        own = parse(text.replace('"', " "), Rules(stemming)).terms
        if own and len(own) < MAX_WORDS:  # every text is found by its own words
            assert 1 in keys(searched(connection, text.replace('"', " "), 10, stemming=stemming))
        words.remove(connection, [(1, text), (2, "a b")])
        connection.execute("DELETE FROM passages")
        assert words.check(connection, Rules(stemming)) == []


@pytest.mark.parametrize("query", ["你" * 50_000, "word " * 50_000, '"' * 50_000, "é" * 100_000, '"a b" ' * 10_000])
def test_very_long_queries(query: str) -> None:
    with indexed("word 你", "a b") as connection:
        assert len(searched(connection, query, 10).keys) <= 1


def test_only_the_first_words_count() -> None:
    first = " ".join(f"w{i}" for i in range(MAX_WORDS))
    with indexed("late", "w0", f"w{MAX_WORDS - 1}") as connection:
        assert sorted(keys(searched(connection, f"{first} late", 10))) == [2, 3]
        assert sorted(keys(searched(connection, f'{first} "late"', 10))) == [2, 3]


def test_is_never_short_of_k_under_a_filter() -> None:
    with indexed(*(["a a a"] * 500 + ["a b"] * 5)) as connection:
        allowed = np.arange(501, 506)
        assert keys(searched(connection, "a", 5, allowed)) == allowed.tolist()
        assert keys(searched(connection, "a", 5, np.empty(0, dtype=np.int64))) == []


def test_keys_may_be_far_larger_than_passages_are_many() -> None:
    """Of a corpus in which most were replaced, or that says so: a filter takes no byte for each that ever was."""
    far = 2**48
    with indexed("a b", "a") as connection:
        words.index(connection, [(far - 1, "a b"), (far, "a")])
        assert keys(searched(connection, "a", 9, np.array([2, far - 1, far]))) == [2, far, far - 1]
        assert keys(searched(connection, '"a b"', 9, np.array([2, far - 1]))) == [far - 1]


def test_check_names_what_is_wrong() -> None:
    with indexed("a", "b", "c") as connection:
        connection.execute("DELETE FROM passages WHERE key < 3")
        connection.execute("INSERT INTO passages VALUES (9)")
        assert words.check(connection, Rules("none")) == [
            "words: 1 passages without words",
            "words: 2 passages of no passage",
        ]
        connection.execute("DELETE FROM words_data WHERE id > 10")
        assert words.check(connection, Rules("none"))[0].startswith("words: ")
        assert len(words.check(connection, Rules("none"))) == 3
        connection.execute("DROP TABLE words")
        assert words.check(connection, Rules("none")) == ["words: no such table"]


@pytest.mark.parametrize(
    ("text", "query", "spans"),
    [
        ("An apple a day", "APPLE", ["apple"]),
        ("Re\u0301sume\u0301, re-sume", "resume", ["Re\u0301sume\u0301"]),
        ("😀 apple\0pie \x01apple", '"apple pie" apple', ["apple\0pie", "apple"]),
        ("pie", '"apple pie" pie', ["pie"]),
        ("nothing", "apple", []),
        ("apple", "", []),
        ("", "apple", []),
        ("", "木", []),
    ],
)
def test_highlights(text: str, query: str, spans: list[str]) -> None:
    found = marked(text, query)
    assert [text[span.start : span.end] for span in found] == spans
    assert all(isinstance(span, Span) for span in found)
