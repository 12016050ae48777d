"""Corrections of misspelt words: as many typos as Meilisearch allows, held against the distance by its definition."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.stores import corrections


@contextmanager
def vocabulary(*words: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(corrections.TABLE)
        corrections.add(connection, words)
        yield connection


def distances(word: str, other: str) -> list[int]:
    """The distance from `word` to each prefix of `other`."""
    table = [[i + j for j in range(len(other) + 1)] for i in range(len(word) + 1)]
    for i in range(1, len(word) + 1):
        for j in range(1, len(other) + 1):
            replaced = table[i - 1][j - 1] + (word[i - 1] != other[j - 1])
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, replaced)
            if i > 1 and j > 1 and word[i - 2 : i] == other[j - 2 : j][::-1]:
                table[i][j] = min(table[i][j], table[i - 2][j - 2] + 1)
    return table[-1]


letters = st.text("abc", min_size=4, max_size=12)


@given(
    words=st.sets(letters, max_size=60), word=letters, edits=st.lists(st.integers(0, 11), max_size=3), on=st.booleans()
)
def test_all_words_within_the_distance_are_found(words: set[str], word: str, edits: list[int], on: bool) -> None:
    for at in edits:  # words that are near, also where the vocabulary is small
        words |= {word[:at] + word[at + 1 :], word[:at] + "b" + word[at:], word[:at] + word[at : at + 2][::-1] + "a"}
    words = {other for other in words if corrections.is_spelled(other)}
    typos = (len(word) >= 5) + (len(word) >= 9)
    near = {
        other
        for other in words - {word}
        if typos and (min if on else max)(distances(word, other)[0 if on else -1 :]) + (word[0] != other[0]) <= typos
    }
    with vocabulary(*words) as connection:
        found = corrections.nearest(connection, word, continued=on)
    assert len(found) == len(set(found))
    assert set(found) == near


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("bnak", []),  # four letters
        ("rivre", ["river"]),
        ("rivver", ["river"]),
        ("xiver", []),  # a typo in the first letter counts twice
        ("zommunication", ["communication"]),
        ("comunicatoin", ["communication"]),
        ("comunicatoinn", []),
        ("ziürich", ["zürich"]),
        ("aaaa1", []),
        ("", []),
    ],
)
def test_corrections(word: str, found: list[str]) -> None:
    with vocabulary("bank", "river", "communication", "zürich", "aaaa2", "機械学習", "b" * 33, "_____") as connection:
        assert corrections.nearest(connection, word) == found
        assert connection.execute("SELECT count(*) FROM vocabulary").fetchone() == (4,)


def test_the_nearest_come_first_and_are_bounded() -> None:
    many = [f"communic{a}{b}" for a in "abcdefghijklmnopq" for b in "abcdefghijklmnopq"]
    with vocabulary("communicaq", *many) as connection:
        found = corrections.nearest(connection, "communica")
    assert len(found) == corrections.MAX_FOUND
    assert found[0] == "communicaa"
