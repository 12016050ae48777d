"""Store and index move together: under concurrent writers a search sees every write that returned before it."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from models.runtimes.base import Floats
from serving.corpora.corpora import Corpora
from serving.corpora.filter_language import compile_filter
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.open_corpus import Indexes
from serving.corpora.ports import Ranking, Store
from serving.corpora.search import Hit, Query, SearchOptions
from serving.corpora.stores import STORES, records
from serving.corpora.stores.corpus_file import CorpusFile
from serving.corpora.stores.sqlite import MemoryStore
from serving.corpora.values import Change, Content, Corpus, Document, Keys, Size, Write
from serving.errors import Conflict, NotFound, ServiceError
from tests.conftest import PATIENCE
from tests.serving.corpora.stores.contents import filled

DIM = 16


def vector(seed: int) -> Floats:
    drawn = np.random.default_rng(seed).standard_normal((1, DIM)).astype(np.float32)
    unit: Floats = drawn / np.linalg.norm(drawn)
    return unit


def content(name: str, seed: int) -> Content:
    return Content([Document(name, f"text {seed}", {"seed": seed})], vector(seed), "f")


def opened(store: Store, folder: Path) -> Corpora:
    return Corpora(store, Indexes(folder / "indexes"))


def find(corpora: Corpora, name: str, vector: Floats, wanted: SearchOptions) -> list[Hit]:
    (hits,) = corpora.search(name, [Query(None, row) for row in vector], wanted).hits
    return hits


def test_of_two_first_uploads_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is committed while this one looks what embeds the corpus."""

    def written_first(reader: sqlite3.Connection) -> Size:
        corpora.put("c", content("other", 1))
        return size(reader)

    corpora = opened(MemoryStore(), tmp_path)
    corpora.create(Corpus("c"))
    size = records.size
    monkeypatch.setattr(records, "size", written_first)
    assert corpora.encoder("c", ["g", "f"]) == "g", "as if nothing were there yet"
    monkeypatch.undo()
    assert corpora.encoder("c", ["g", "f"]) == "f"
    corpora.close()


@pytest.mark.parametrize("store", STORES)
def test_concurrent_writers(tmp_path: Path, store: str) -> None:
    kept = STORES[store](tmp_path)
    corpora = opened(kept, tmp_path)
    corpora.create(Corpus("c"))

    def write(worker: int) -> None:
        rng = random.Random(worker)
        for step in range(15):
            seed = 1000 * worker + step
            corpora.put("c", content(f"shared {rng.randrange(5)}", seed + 500))
            corpora.put("c", content(f"own {worker} {step % 4}", seed))
            found = find(corpora, "c", vector(seed), SearchOptions(k=1))
            assert found[0].text == f"text {seed}"
            assert found[0].score == pytest.approx(1, abs=1e-5)
            if step % 5 == 4:
                corpora.delete("c", f"own {worker} {step % 4}")
                found = find(corpora, "c", vector(seed), SearchOptions(k=1))
                assert found[0].text != f"text {seed}"

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(1, 5)))
    live = find(corpora, "c", vector(0), SearchOptions(k=100, with_vector=True))
    rebuilt = find(opened(kept, tmp_path / "again"), "c", vector(0), SearchOptions(k=100, with_vector=True))
    assert [(hit.passage, hit.score) for hit in live] == [(hit.passage, hit.score) for hit in rebuilt]
    for hit in live:
        assert hit.vector is not None
        assert np.array_equal(hit.vector, vector(hit.passage.document.metadata["seed"])[0])
    assert corpora.delete_where("c", compile_filter({"seed": {"$gte": 0}})) == len(live)
    assert find(corpora, "c", vector(0), SearchOptions()) == []
    corpora.close()


def test_a_missing_corpus(tmp_path: Path) -> None:
    corpora = opened(STORES["memory"](tmp_path), tmp_path)
    with pytest.raises(NotFound):
        find(corpora, "nope", vector(0), SearchOptions())
    corpora.create(Corpus("c"))
    corpora.drop("c")
    assert corpora.index_sizes() == {}
    corpora.close()


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_corpora_come_and_go_while_others_use_them(tmp_path: Path, store: str) -> None:
    """Every answer is right or `NotFound`: nothing is read from, or written to, a file that is going."""
    corpora = opened(filled(STORES[store](tmp_path), "stays", content("a", 1)), tmp_path)
    done = threading.Event()

    def come_and_go() -> None:
        for seed in range(30):
            assert corpora.create(Corpus("goes"))
            corpora.put("goes", content("first", seed))
            corpora.drop("goes")

    def upload(seed: int) -> None:
        corpora.put("goes", content(f"{seed % 7}", seed))

    def look(seed: int) -> None:
        found = {corpus.name for corpus, _ in corpora.listing()}
        assert found in ({"stays"}, {"stays", "goes"})

    def search(seed: int) -> None:
        for hit in find(corpora, "goes", vector(seed), SearchOptions(k=5, with_vector=True)):
            assert hit.vector is not None

    steps: list[Callable[[int], object]] = [
        upload,
        look,
        look,
        search,
        search,
        lambda _: corpora.page("goes", None, 5),
        lambda _: corpora.encoder("goes", ["f"]),
        lambda _: corpora.document("goes", "3"),
        lambda _: corpora.delete_where("goes", compile_filter({"seed": {"$gte": 20}})),
    ]

    def repeat(step: Callable[[int], object]) -> None:
        for seed in count():
            with suppress(NotFound):
                step(seed)
            if done.wait(0.001):
                return

    with ThreadPoolExecutor(1 + len(steps)) as pool:
        changing = pool.submit(come_and_go)
        changing.add_done_callback(lambda _: done.set())
        list(pool.map(repeat, steps))
        changing.result()
    assert corpora.document("stays", "a").text == "text 1"
    corpora.close()


@pytest.mark.parametrize("store", STORES)
def test_a_document_that_is_being_replaced_is_always_found(tmp_path: Path, store: str) -> None:
    corpora = opened(filled(STORES[store](tmp_path), "c", content("a", 1)), tmp_path)
    everything, replaced = SearchOptions(where=compile_filter({"seed": {"$gte": 0}})), threading.Event()

    def replace() -> None:
        for _ in range(100):
            corpora.put("c", content("a", 1))
        replaced.set()

    with ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(replace)
        while not replaced.is_set():
            for wanted in (everything, SearchOptions()):
                assert [hit.passage.document.id for hit in find(corpora, "c", vector(1), wanted)] == ["a"]
            assert corpora.document("c", "a").text == "text 1"
        replacing.result()
    corpora.close()


def test_others_do_not_wait_for_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one search computes, its own corpus is written, read and searched; and it answers as of after that."""
    corpora = opened(filled(STORES["sqlite"](tmp_path), "c", content("a", 1)), tmp_path)
    started, finish, compute = threading.Event(), threading.Event(), LiveIndex.search

    def slow(
        self: LiveIndex, queries: Floats, k: int, allowed: Keys | None = None, *, exact: bool = False
    ) -> list[Ranking]:
        found = compute(self, queries, k, allowed, exact=exact)
        if not started.is_set():
            started.set()
            assert finish.wait(PATIENCE)
        return found

    monkeypatch.setattr(LiveIndex, "search", slow)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(find, corpora, "c", vector(1), SearchOptions())
        assert started.wait(PATIENCE)
        corpora.put("c", content("b", 2))
        corpora.delete("c", "a")
        assert [hit.passage.document.id for hit in find(corpora, "c", vector(2), SearchOptions())] == ["b"]
        assert corpora.listing()[0][1].documents == 1
        finish.set()
        assert [hit.passage.document.id for hit in busy.result()] == ["b"]
    corpora.close()


def test_others_take_turns_with_a_deletion_by_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits during a commit usually gets the lock before the next commit: its number is then 1."""
    documents, commits, waited = [Document(f"d{i}", "text", {}) for i in range(30)], count(), list[int]()
    every = Content(documents, np.repeat(vector(1), len(documents), axis=0), "f")
    store = filled(MemoryStore(), "c", every)
    corpora, write, threads = opened(store, tmp_path), store.write, list[threading.Thread]()
    monkeypatch.setattr("serving.corpora.corpora.REMOVED_TOGETHER", 1)

    def waiting(before: int, begun: threading.Event) -> None:
        begun.set()
        with corpora.named("c").locked():
            waited.append(next(commits) - before)

    def commit(name: str, writes: Sequence[Write]) -> list[Change | ServiceError]:
        begun = threading.Event()
        threads.append(threading.Thread(target=waiting, args=(next(commits), begun)))
        threads[-1].start()
        assert begun.wait(PATIENCE)
        time.sleep(0.002)  # so that it waits for the lock
        return write(name, writes)

    monkeypatch.setattr(store, "write", commit)
    assert corpora.delete_where("c", compile_filter({"$not": {"x": 1}})) == len(documents)
    for thread in threads:
        thread.join()
    assert sum(waited) < 1.5 * len(waited), waited
    corpora.close()


def test_others_do_not_wait_for_who_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A description waits for what writes into the same corpus, which may take minutes."""
    corpora = opened(filled(STORES["sqlite"](tmp_path), "c", content("a", 1)), tmp_path)
    started, finish, describe = threading.Event(), threading.Event(), CorpusFile.describe

    def slow(self: CorpusFile, wanted: Corpus) -> None:
        started.set()
        assert finish.wait(PATIENCE)
        describe(self, wanted)

    monkeypatch.setattr(CorpusFile, "describe", slow)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(corpora.create, Corpus("c", description="of one document"))
        assert started.wait(PATIENCE)
        assert corpora.create(Corpus("other"))
        corpora.drop("other")
        assert [corpus.description for corpus, _ in corpora.listing()] == [None]
        finish.set()
        assert waiting.result() is False
    assert corpora.corpus("c")[0].description == "of one document"
    corpora.close()


def test_what_was_removed_before_there_was_an_index_is_forgotten(tmp_path: Path) -> None:
    store = STORES["sqlite"](tmp_path)
    corpora = opened(store, tmp_path)
    corpora.create(Corpus("c"))
    for seed in range(6):
        corpora.put("c", content("a", seed))
    corpora.warm()
    removed = store.tombstones("c", store.last_key("c")).tolist()
    corpora.close()
    assert removed == []


def test_an_index_is_built_of_ten_vectors_at_least(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With fewer there is nothing to measure its recall by."""
    corpora = Corpora(MemoryStore(), Indexes(tmp_path / "indexes", least=1))
    corpora.create(Corpus("c"))
    for seed in range(1, 12):
        corpora.put("c", content(f"d{seed}", seed))
        report = corpora.build_now("c")
        assert report and report.kind == ("exact" if seed < 10 else "hnsw")
    assert not caplog.records
    corpora.close()


def test_a_renamed_corpus_keeps_its_index(tmp_path: Path) -> None:
    corpora = Corpora(MemoryStore(), Indexes(tmp_path / "indexes", least=1))
    corpora.create(Corpus("c"))
    for seed in range(1, 21):
        corpora.put("c", content(f"d{seed}", seed))
    corpora.build_now("c")
    (built,) = (path.name for path in (tmp_path / "indexes" / "c").iterdir())
    before = corpora.search("c", [Query(None, vector(99)[0])], SearchOptions(k=20))
    corpora.rename("c", "d")
    assert (corpora.names(), sorted(path.name for path in (tmp_path / "indexes").iterdir())) == (["d"], ["d"])
    after = corpora.search("d", [Query(None, vector(99)[0])], SearchOptions(k=20))
    assert (after.hits, after.index) == (before.hits, "hnsw")
    assert [path.name for path in (tmp_path / "indexes" / "d").iterdir()] == [built]
    corpora.put("d", content("new", 99))
    corpora.create(Corpus("c"))
    assert corpora.search("c", [Query(None, vector(99)[0])], SearchOptions()).hits == [[]]
    with pytest.raises(Conflict, match="already a corpus 'c'"):
        corpora.rename("d", "c")
    corpora.close()
