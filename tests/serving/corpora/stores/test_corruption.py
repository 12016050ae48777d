"""Bytes that flip, files that end too soon: the last good record, or a refusal that names the file. Never wrong ids."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from serving.corpora.filter_language import compile_filter
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Chunking, Corpus, Document, Removal, Write
from serving.errors import Damaged, Unhealthy
from tests.serving.corpora.stores.contents import content, filled, vectors

TAIL = 4096
CUTS = 16
"""Every byte is flipped; a file is cut at every so many."""
ODD = compile_filter({"odd": True})


class State(NamedTuple):
    """All that a corpus answers."""

    documents: list[Document]
    passages: dict[int, tuple[str, str]]
    odd: list[str]
    words: list[int]


def state(store: SqliteStore) -> State:
    keys, passages = [], {}
    for block, matrix in store.vectors("c"):
        for key, (document, span) in store.passages("c", block.tolist()).items():
            passages[key] = (document.id, document.text[slice(*span or (None,))])
        assert (matrix == vectors("f", [passages[key][1] for key in block.tolist()])).all(), "a wrong vector"
        keys += block.tolist()
    assert list(passages) == keys
    documents = [document for _, document in store.page("c", 0, 10**6).rows]
    return State(
        documents, passages, store.ids_matching("c", ODD), sorted(store.words("c", "word", 10**6).keys.tolist())
    )


def rows(first: int, last: int) -> Write:
    chosen = [(f"d{i}", f"word {i} and more", {"odd": i % 2 == 1}) for i in range(first, last)]
    return content(chosen, chunking=Chunking(3, 0))


WRITES: list[Write] = [rows(0, 12), rows(5, 7), Removal(["d3"]), rows(20, 29), Removal(["d20", "d0"]), rows(0, 2)]


class Image(NamedTuple):
    """A folder as a kill leaves it, and what was true after each commit."""

    folder: Path
    states: list[State]


@pytest.fixture(scope="module", params=["closed", "killed"])
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Image:
    live, folder = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("image")
    store = SqliteStore(live)
    store.create(Corpus("c"))
    states = [state(store)]
    for write in WRITES:
        store.write("c", [write])
        states.append(state(store))
    if request.param == "closed":
        store.close()
    for name in ("c.sqlite", "c.sqlite-wal"):
        if (live / name).exists():
            shutil.copy(live / name, folder)
    if request.param == "killed":
        store.close()
    return Image(folder, states)


def check(image: Image, spoilt: Path) -> str:
    """What came of it."""
    store = SqliteStore(spoilt, synchronous="OFF")
    try:
        found = state(store)
    except Unhealthy as error:
        assert "c.sqlite" in error.message
        return "refused when read"
    else:
        if found in image.states:
            return "recovered"
        assert store.verify("c"), "a wrong answer that verification takes for right"
        right = image.states[-1]
        assert (found.documents, found.passages) == (right.documents, right.passages), "wrong documents"
        return "found by verification"
    finally:
        store.close()


def spoil(image: Image, to: Path, name: str, place: int, cut: bool) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(image.folder, to)
    whole = bytearray((to / name).read_bytes())
    if cut:
        del whole[place:]
    else:
        whole[place] ^= 0xFF
    (to / name).write_bytes(whole)


def cases(image: Image, places: int | None) -> Iterator[tuple[str, int, bool]]:
    """Of each file: bytes of its tail, all or some, and some anywhere."""
    rng = random.Random(0)
    for file in sorted(image.folder.iterdir()):
        size = file.stat().st_size
        tail: Sequence[int] = range(max(0, size - TAIL), size)
        anywhere = [rng.randrange(size) for _ in range(places or 500)]
        for place in [*(tail if places is None else rng.sample(tail, places)), *anywhere]:
            yield file.name, place, False
            if places or not place % CUTS:
                yield file.name, place, True


@pytest.mark.parametrize("places", [12, pytest.param(None, marks=pytest.mark.nightly)])
def test_a_spoilt_file_recovers_or_is_refused(image: Image, tmp_path: Path, places: int | None) -> None:
    outcomes: dict[str, int] = {}
    for name, place, cut in cases(image, places):
        spoil(image, tmp_path / "spoilt", name, place, cut)
        try:
            outcome = check(image, tmp_path / "spoilt")
        except BaseException as error:
            error.add_note(f"{name}, byte {place} {'cut' if cut else 'flipped'}")
            raise
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert "recovered" in outcomes


@pytest.mark.parametrize("lost", ["documents WHERE number = 1", "passages WHERE document = 1", "vectors WHERE key = 2"])
def test_a_row_that_is_missing_is_damage(tmp_path: Path, lost: str) -> None:
    """The pages are whole, because the disk has lost a write."""
    split, text = Chunking(1, 0), "two words"
    filled(SqliteStore(tmp_path), "c", content([("a", text, {})], chunking=split)).close()
    with closing(sqlite3.connect(tmp_path / "c.sqlite")) as database, database:
        database.execute(f"DELETE FROM {lost}")
    store = SqliteStore(tmp_path)
    reads: list[Callable[[], object]] = [lambda: store.embedded("c", [text], split, "f")]
    if lost.startswith("documents"):
        reads = [lambda: store.passages("c", [1, 2]), lambda: store.stale("c", "g", 9)]
    for read in reads:
        with pytest.raises(Damaged, match=r"c\.sqlite: .*\(row 1\) (is|are) missing"):
            read()
    assert store.damage("c") and store.verify("c")
    store.close()


@pytest.mark.parametrize("table", ["words_docsize", "passages_by_document"])
def test_a_page_that_the_check_of_words_can_not_read_is_found_by_verification(tmp_path: Path, table: str) -> None:
    filled(SqliteStore(tmp_path), "c", content([("a", "word", {})])).close()
    with closing(sqlite3.connect(tmp_path / "c.sqlite")) as database:
        page = "SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = ?"
        ((number, size),) = database.execute(page, (table,))
    with (tmp_path / "c.sqlite").open("r+b") as file:
        file.seek((number - 1) * size)
        file.write(b"\xff" * size)
    store = SqliteStore(tmp_path)
    assert "malformed" in store.verify("c")[0]
    store.close()
