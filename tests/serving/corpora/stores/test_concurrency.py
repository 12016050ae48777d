"""Readers and writers at once: nobody waits for a lock, and every read is some prefix of the writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from serving.corpora.filter_language import compile_filter
from serving.corpora.stores import connections, corpus_file, records
from serving.corpora.stores.corpus_file import CorpusFile
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Corpus, Removal, Write
from tests.serving.corpora.stores.contents import content, filled

WRITERS, READERS = 8, 8
KEPT = 20
"""Documents of a writer at a time: the one before them goes as the next one comes."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path, synchronous="OFF")
    opened.create(Corpus("c"))
    yield opened
    opened.close()


class Load:
    """Threads that go on until told to stop; the first error of any is raised in the end."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, step: Callable[[], None]) -> None:
        def go_on() -> None:
            try:
                while not self._stop.is_set():
                    step()
            except BaseException as error:
                self._errors.append(error)
                self._stop.set()

        self._threads.append(threading.Thread(target=go_on))
        self._threads[-1].start()

    def stop_after(self, seconds: float) -> None:
        self._stop.wait(seconds)
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


@pytest.mark.parametrize("seconds", [0.5, pytest.param(20, marks=pytest.mark.slow)])
def test_every_read_is_some_prefix_of_the_writes(store: SqliteStore, seconds: float) -> None:
    done = [0] * WRITERS
    load = Load()

    def write(writer: int) -> None:
        number = done[writer]
        writes: list[Write] = [content([(f"{writer}-{number}", f"word{writer}", {"writer": writer, "number": number})])]
        if number >= KEPT:
            writes.append(Removal([f"{writer}-{number - KEPT}"]))
        store.write("c", writes)
        done[writer] += 1

    def check(writer: int, numbers: list[int], before: int) -> None:
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else not before
        if numbers:
            assert numbers[-1] >= before - 1, "acknowledged, and not seen"
            assert len(numbers) == min(KEPT, numbers[-1] + 1)

    def read_all() -> None:
        before = list(done)
        held = [document.metadata for _, document in store.page("c", 0, 10**6).rows]
        for writer in range(WRITERS):
            check(writer, [one["number"] for one in held if one["writer"] == writer], before[writer])

    def read_one(writer: int) -> None:
        before = done[writer]
        ids = store.ids_matching("c", compile_filter({"writer": writer}))
        check(writer, [int(name.split("-")[1]) for name in ids], before)
        found = len(store.words("c", f"word{writer}", 100).keys)
        assert min(KEPT, before) <= found <= min(KEPT, done[writer] + 1)
        for keys, _ in islice(store.vectors("c"), 1):  # all in one block; what comes later is in the next one
            assert len(keys) <= WRITERS * KEPT

    for number in range(WRITERS):
        load.start(lambda number=number: write(number))  # type: ignore[misc]
    for number in range(READERS):
        load.start(read_all if number % 2 else lambda number=number: read_one(number))  # type: ignore[misc]
    load.stop_after(seconds)
    assert min(done) > 0
    assert store.verify("c") == []


@pytest.mark.slow
def test_the_log_stays_bounded_under_readers_that_never_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOG_BYTES", 1 << 20)
    store = filled(SqliteStore(tmp_path, synchronous="OFF"), "c", content([(f"d{i}", "text", {}) for i in range(500)]))
    load = Load()

    def read() -> None:
        assert len(store.page("c", 0, 500).rows) == 500

    for _ in range(3):
        load.start(read)
    written, largest = 0, 0
    try:
        while written < 6 << 20:
            text = "0123456789" * 10_000
            store.write("c", [content([("a", text, {})])])
            written += len(text)
            largest = max(largest, (tmp_path / "c.sqlite-wal").stat().st_size)
    finally:
        load.stop_after(0)
    assert largest < 4 << 20
    store.close()


def test_the_log_stays_bounded_while_space_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages from the end of the file move to its unused pages, through the log."""
    monkeypatch.setattr(connections, "LOG_BYTES", 1 << 16)
    monkeypatch.setattr(corpus_file, "_STEP", 8)
    store = filled(SqliteStore(tmp_path, synchronous="OFF"), "c", content([("a", "text", {})]))
    store.write("c", [content([(f"d{i}", "0123456789" * 2000, {}) for i in range(60)])])
    store.write("c", [Removal([f"d{i}" for i in range(30)])])
    with store._file("c").maintaining() as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")  # as under readers that never pause
    give_back, sizes = CorpusFile._free_bytes, list[int]()

    def free_bytes(file: CorpusFile, given_back: int) -> int:
        left = give_back(file, given_back)
        sizes.append((tmp_path / "c.sqlite-wal").stat().st_size)
        return left

    monkeypatch.setattr(CorpusFile, "_free_bytes", free_bytes)
    store.give_back("c")
    assert len(sizes) > 9 and max(sizes) <= 1 << 16
    store.close()


def test_the_log_is_short_again_after_a_long_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows by what is written meanwhile, and no longer keeps that room from the disk when the reader has ended."""
    monkeypatch.setattr(connections, "LOG_BYTES", 1 << 20)
    monkeypatch.setattr(connections, "_LOG_PATIENCE_MS", 1)
    store = filled(SqliteStore(tmp_path, synchronous="OFF"), "c", content([("a", "text", {})]))
    log = tmp_path / "c.sqlite-wal"
    with store._file("c").reading() as reader:
        assert reader.execute("SELECT count(*) FROM documents").fetchone() == (1,)
        store.write("c", [content([("b", "0123456789" * 400_000, {})])])
        assert log.stat().st_size > 3 << 20
    store.write("c", [content([("last", "text", {})])])
    assert log.stat().st_size <= 1 << 20
    store.close()


def test_a_reader_waits_for_no_writer(store: SqliteStore) -> None:
    store.write("c", [content([("a", "first", {})])])
    with store._file("c").writing() as writer:
        writer.execute("DELETE FROM documents")
        seen: list[str] = []
        reader = threading.Thread(target=lambda: seen.extend(one.id for _, one in store.page("c", 0, 9).rows))
        reader.start()
        reader.join(30)
        assert seen == ["a"]


def test_an_iteration_holds_nothing_open(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BLOCK", 4)
    store.write("c", [content([(f"d{i}", "text", {}) for i in range(10)])])
    found = store.vectors("c")
    next(found)
    with store._file("c").set_aside():
        pass  # nobody was waited for
    store.write("c", [Removal(["d5"])])
    assert [keys.tolist() for keys, _ in found] == [[5, 7, 8, 9], [10]]


def test_a_block_ends_before_its_vectors_take_much(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they are long."""
    store.write("c", [content([(f"d{i}", "text", {}) for i in range(5)])])
    (every,) = store.vectors("c")
    monkeypatch.setattr(records, "BLOCK_BYTES", 2 * every[1][0].nbytes)
    assert [keys.tolist() for keys, _ in store.vectors("c")] == [[1, 2], [3, 4], [5]]
