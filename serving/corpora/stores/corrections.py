"""Corrections of misspelt words, from the words of the corpus.

A word of 5 letters or more may have one typo, a word of 9 letters or more two typos, as in Meilisearch. A typo is a
letter that is wrong, missing or superfluous, or two neighbouring letters in the wrong order (optimal string alignment
distance). A typo in the first letter counts twice.

Only some words of the vocabulary are compared with a misspelt word. A word that may have n typos is cut into n + 1
pieces. At least one piece has no typo (pigeonhole principle), so only words with one of these pieces are compared. One
character between two pieces belongs to neither piece, because a swap may affect the letters on both sides of a cut.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from serving.corpora.stores import analysis
from serving.operations.threads import check_cancelled

ONE_TYPO, TWO_TYPOS = 5, 9
"""Minimum number of letters of a word that may have one typo, and of a word that may have two."""
MAX_WORD = 32
"""Maximum number of letters of a word in the vocabulary."""
MAX_FOUND = 100
"""Maximum number of words that `nearest` returns."""
MAX_COMPARED = 50_000
"""Maximum number of words of the vocabulary that are compared with a word."""
TABLE = "CREATE TABLE vocabulary (word TEXT PRIMARY KEY) STRICT, WITHOUT ROWID"
"""The table of the words in all passages, without stemming. Words of a removed passage stay in the table, because
counting words would rewrite many pages for each document. If such a word is used as a correction, it finds nothing."""
_SPELLED = re.compile(rf"[^\d_]{{{ONE_TYPO - 1},{MAX_WORD}}}")
_LAST = chr(sys.maxunicode)
_Distances = NDArray[np.int8]


def is_spelled(word: str) -> bool:
    """Return whether `word` belongs in the vocabulary.

    The word must be long enough, have no digits, and have a script that separates words by spaces.
    """
    return _SPELLED.fullmatch(word) is not None and not analysis.has_unspaced(word)


def add(writer: sqlite3.Connection, words: Iterable[str]) -> None:
    """Add words of new passages to the vocabulary."""
    spelled = ((word,) for word in words if is_spelled(word))
    writer.executemany("INSERT OR IGNORE INTO vocabulary (word) VALUES (?)", spelled)


def beginning(reader: sqlite3.Connection, prefix: str, limit: int) -> list[str]:
    """Return up to `limit` words of the vocabulary that begin with `prefix`, sorted."""
    select = "SELECT word FROM vocabulary WHERE word BETWEEN ? AND ? ORDER BY word LIMIT ?"
    return [word for (word,) in reader.execute(select, (prefix, prefix + _LAST, limit))]


def nearest(reader: sqlite3.Connection, word: str, *, continued: bool = False) -> list[str]:
    """Return up to `MAX_FOUND` corrections of `word` from the vocabulary, nearest first.

    Of corrections at the same distance, the shortest is first. With `continued`, also return words of the vocabulary
    that begin with a correction.
    """
    check_cancelled()
    typos = (len(word) >= ONE_TYPO) + (len(word) >= TWO_TYPOS)
    if not typos or not is_spelled(word):
        return []
    compared = [*_with_first_letter(reader, word, typos, continued=continued)]
    if typos > 1:
        compared += _with_another_first_letter(reader, word, continued=continued)
    if not compared:
        return []
    compared = list(dict.fromkeys(compared))
    found = distances(word, compared, continued=continued)
    near = [(int(found[i]), len(compared[i]), compared[i]) for i in np.flatnonzero(found <= typos)]
    return [one for _, _, one in sorted(near) if one != word][:MAX_FOUND]


def _with_first_letter(reader: sqlite3.Connection, word: str, typos: int, *, continued: bool) -> Iterator[str]:
    """Yield words of the vocabulary that begin with the first letter of `word`, and may be corrections of `word`.

    At most `MAX_COMPARED` words are yielded. For this, `word` is cut into `typos` + 1 pieces, and one letter between
    neighbouring pieces is left out. Each yielded word begins with the first piece, or contains another piece. With
    `continued`, also yield words that may begin with a correction.
    """
    size = (len(word) - typos) // (typos + 1)
    pieces = [word[at : at + size] for at in range(0, (size + 1) * typos, size + 1)]
    pieces.append(word[(size + 1) * typos :])
    longest = MAX_WORD if continued else len(word) + typos
    select = f"""SELECT word FROM vocabulary
        WHERE word BETWEEN ? AND ? AND length(word) BETWEEN ? AND ?
        AND (word BETWEEN ? AND ? OR {" OR ".join(["instr(word, ?)"] * typos)}) LIMIT {MAX_COMPARED}"""
    first, *others = pieces
    bounds = (word[0], word[0] + _LAST, len(word) - typos, longest, first, first + _LAST, *others)
    yield from (found for (found,) in reader.execute(select, bounds))


def _with_another_first_letter(reader: sqlite3.Connection, word: str, *, continued: bool) -> Iterator[str]:
    """Yield words of the vocabulary that differ from `word` by one typo in the first letter.

    With `continued`, compare `word` with the beginnings of the words.
    """
    rest = word[1:]
    wanted = {rest, word[1] + word[0] + word[2:]}
    wanted |= {letter + end for letter in _first_letters(reader) for end in (rest, word)}
    for one in sorted(wanted):
        if continued:
            yield from beginning(reader, one, MAX_FOUND)
        else:
            yield from (found for (found,) in reader.execute("SELECT word FROM vocabulary WHERE word = ?", (one,)))


def _first_letters(reader: sqlite3.Connection) -> Iterator[str]:
    """Yield each distinct first letter of the words in the vocabulary, with one lookup for each letter."""
    after = ""
    while row := reader.execute(
        "SELECT word FROM vocabulary WHERE word > ? ORDER BY word LIMIT 1", (after,)
    ).fetchone():
        yield row[0][0]
        after = row[0][0] + _LAST


def distances(word: str, others: list[str], *, continued: bool = False) -> _Distances:
    """Return the distance of `word` to each of `others`. A typo in the first letter counts twice.

    With `continued`, return the distance of `word` to the nearest prefix of each of `others`. Without `continued`, the
    distance to words that are more than two letters longer than `word` is not computed. They get at least 126.

    The distances to all words are computed together, by the usual dynamic programming (Damerau, A technique for
    computer detection and correction of spelling errors, 1964).
    """
    width = min(max(map(len, others)), len(word) + 2)
    lengths = np.array([len(other) for other in others], dtype=np.int64)
    letters = np.array([other[:width].ljust(width, "\0") for other in others], dtype=f"U{width}")
    table = np.ascontiguousarray(letters.view(np.uint32).reshape(len(others), -1).T)
    before = above = np.empty((0, len(others)), dtype=np.int8)
    rows = np.repeat(np.arange(width + 1, dtype=np.int8)[:, None], len(others), axis=1)
    for i, letter in enumerate(map(ord, word)):
        before, above, rows = above, rows, np.empty_like(rows)
        rows[0] = i + 1
        for j in range(width):
            same = table[j] == letter
            rows[j + 1] = np.minimum(np.minimum(above[j + 1], rows[j]) + 1, above[j] + ~same)
            if i and j:
                swapped = (table[j - 1] == letter) & (table[j] == ord(word[i - 1]))
                np.minimum(rows[j + 1], before[j - 1] + 1, out=rows[j + 1], where=swapped)
    ends = np.arange(width + 1)[:, None]
    reached = ends <= lengths if continued else ends == lengths
    nearest: _Distances = np.where(reached, rows, np.int8(np.iinfo(np.int8).max - 1)).min(axis=0, initial=126)
    nearest += table[0] != ord(word[0])
    return nearest
