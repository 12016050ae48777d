"""Tests of a live index against its source: added vectors are found at once, removed vectors are never found again."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from serving.corpora.indexes import KINDS, live, saved
from serving.corpora.indexes.building import Builder, Plan
from serving.corpora.indexes.live import LiveIndex
from tests.conftest import soon
from tests.serving.corpora.indexes.following import (
    DIM,
    EVERY,
    IDENTITY,
    NO_KEYS,
    NO_VECTORS,
    PLAN,
    Turns,
    check,
    opened,
    put,
    same,
    take,
    truth,
)
from tests.serving.corpora.indexes.sources import DictSource
from tests.serving.corpora.indexes.vectors import clustered, keys

pytestmark = pytest.mark.usefixtures("approximate")


def test_a_small_corpus_is_searched_exactly(builder: Turns, tmp_path: Path) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        assert len(index) == 0
        assert [one.keys.tolist() for one in index.search(clustered(2), 5)] == [[], []]
        put(index, source, 300)
        take(index, source, [1, 2, 3, 299])
        assert same(index.search(clustered(20, seed=5), 7), truth(source, clustered(20, seed=5), 7))
        report = index.report
        assert (report.kind, report.recall, report.tail, report.main, report.state) == ("exact", 1.0, 296, 0, "ready")
        assert report.reason is None or "below" in report.reason
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", soon(EVERY, "hnsw"))
def test_every_kind_serves(kind: str, builder: Turns, tmp_path: Path) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path, Plan(least=2000, kinds=(kind,)))) as index:
        put(index, source, 2500)
        assert index.report.state == "building"
        check(index, source)
        builder.build()
        report = index.report
        assert (report.kind, report.state, report.main, report.tail) == (kind, "ready", 2500, 0)
        assert report.recall >= report.target == 0.9
        assert set(report.recall_by_filter) == {"0.5", "0.05", "0.005"}
        assert min(report.recall_by_filter.values()) >= 0.9
        assert report.queries == 250
        assert report.bytes > 2500 * DIM * 4
        check(index, source)
        put(index, source, 400, seed=1)
        take(index, source, [*range(1, 200), 2600])
        check(index, source)
        assert (index.report.tail, index.report.dead) == (399, 199)
    with closing(opened(source, builder, tmp_path, Plan(least=2000, kinds=(kind,)))) as again:
        assert (again.report.kind, again.report.main, again.report.tail, again.report.dead) == (kind, 2500, 399, 199)
        check(again, source)


@pytest.mark.slow
def test_compaction_forgets_what_is_dead_and_takes_in_the_tail(builder: Turns, tmp_path: Path) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 2500)
        builder.build()
        (first,) = tmp_path.iterdir()
        take(index, source, list(range(1, 510)))
        assert index.report.state == "building"
        put(index, source, 100, seed=1)
        assert len(source.graves) == 509
        builder.build()
        report = index.report
        assert (report.main, report.dead, report.tail) == (2091, 0, 0)
        assert source.graves == set()
        assert not first.exists()
        assert len(list(tmp_path.iterdir())) == 1
        check(index, source)
    with closing(opened(source, builder, tmp_path)) as again:
        check(again, source)


def test_what_happens_during_a_build_is_in_what_follows(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check also after a restart: a key that was removed during a build keeps its tombstone."""
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 2500)

        def meanwhile(place: str) -> None:
            if place == "index.compaction":
                put(index, source, 300, seed=1)
                take(index, source, [5, 6, 2400, 2600])
                source.take(keys([7]))  # The write is committed, but the index does not know it yet.
            if place == "index.before-bury":
                index.change(keys([7]), NO_KEYS, NO_VECTORS)
                check(index, source)

        monkeypatch.setattr(live, "reach", meanwhile)
        builder.build()
        assert {5, 6, 7, 2400} <= source.graves
        check(index, source)
    with closing(opened(source, builder, tmp_path)) as again:
        assert again.report.main == 2500
        check(again, source)


def test_a_build_that_waited_for_another_is_not_made_again(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 2500)
        behind = threading.Thread(target=builder.build)

        def meanwhile(place: str) -> None:
            if place == "index.compaction" and not behind.ident:
                behind.start()
                behind.join(0.2)

        monkeypatch.setattr(live, "reach", meanwhile)
        index.build_now()
        (built,) = tmp_path.iterdir()
        behind.join()
        assert list(tmp_path.iterdir()) == [built]
        assert index.report.state == "ready"


@pytest.mark.slow
@pytest.mark.parametrize("other", [replace(PLAN, kinds=()), replace(PLAN, least=3000)])
def test_another_plan_holds_from_the_next_opening_on(
    builder: Turns, tmp_path: Path, caplog: pytest.LogCaptureFixture, other: Plan
) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 2500)
        builder.build()
        assert index.report.kind == "hnsw"
    with closing(opened(source, builder, tmp_path, other)) as index:
        assert "hnsw, but the server's options demand exact search for 2500 vectors" in caplog.text
        assert (index.report.kind, len(index)) == ("exact", 2500)
        check(index, source)
        builder.build()
        index.build_now()  # This happens when much is removed.
        assert index.report.kind == "exact" and not builder.waiting
    with closing(opened(source, builder, tmp_path, other)) as index:
        assert (index.report.kind, index.report.state) == ("exact", "ready")
    with closing(opened(source, builder, tmp_path)) as index:
        builder.build()
        assert index.report.kind == "hnsw"
        check(index, source)


@pytest.mark.slow
def test_another_target_is_another_build(builder: Turns, tmp_path: Path) -> None:
    source, target = DictSource(), [0.7]
    with closing(
        LiveIndex(source, "c", IDENTITY, builder, folder=tmp_path, target=lambda: target[0], plan=PLAN)
    ) as index:
        put(index, source, 2500)
        builder.build()
        index.reconsider()
        assert not builder.waiting
        before = index.report.parameters["efSearch"]
        target[0] = 0.999
        index.reconsider()
        builder.build()
        assert index.report.target == 0.999
        assert index.report.kind == "exact" or index.report.parameters["efSearch"] > before


def test_a_target_that_nothing_reaches_is_served_exactly_and_said(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.corpora.indexes.approximate.Hnsw.efforts", lambda *_: [1])
    source = DictSource()
    with closing(LiveIndex(source, "c", IDENTITY, builder, folder=tmp_path, target=lambda: 0.999, plan=PLAN)) as index:
        put(index, source, 2500)
        builder.build()
        report = index.report
        assert (report.kind, report.recall, report.queries, report.main) == ("exact", 1.0, 0, 2500)
        assert report.reason is not None
        assert "hnsw reaches a recall of" in report.reason
        assert same(index.search(clustered(20, seed=5), 7), truth(source, clustered(20, seed=5), 7))
        take(index, source, [1, 2000])
        put(index, source, 50, seed=3)
        assert same(index.search(clustered(20, seed=5), 7), truth(source, clustered(20, seed=5), 7))


@pytest.mark.parametrize("before", [0.5, 1.0])
def test_a_target_of_1_is_exact_search_whatever_was_measured(builder: Turns, tmp_path: Path, before: float) -> None:
    """Search exactly, even if an index reports that it reaches the target."""
    source, target = DictSource(), [0.5]
    with closing(
        LiveIndex(source, "c", IDENTITY, builder, folder=tmp_path, target=lambda: target[0], plan=PLAN)
    ) as index:
        put(index, source, 2500)
        builder.build()
        assert index.report.kind == "hnsw"
        object.__setattr__(index._seen.main.tuning, "target", before)  # An earlier version leaves this file.
        target[0] = 1.0
        index.reconsider()
        builder.build()
        report = index.report
        assert (report.kind, report.recall, report.state) == ("exact", 1.0, "ready")
        assert report.reason == "only exact search guarantees a recall of 1"
        put(index, source, 3500, seed=1)
        builder.grow()
        builder.build()
        assert (index.report.kind, index.report.main) == ("exact", 6000)


def test_a_first_tail_does_not_grow_into_a_graph_for_a_target_of_1(builder: Turns, tmp_path: Path) -> None:
    source = DictSource()
    with closing(LiveIndex(source, "c", IDENTITY, builder, folder=tmp_path, target=lambda: 1.0, plan=PLAN)) as index:
        put(index, source, 2 * PLAN.least)
        assert not builder.brief
        builder.build()
        assert index.report.kind == "exact"


def test_many_vectors_are_read_into_a_file(builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "ROOM", 500)
    source = DictSource()
    source.put(clustered(2500))
    with closing(opened(source, builder, tmp_path)) as index:
        assert index.nbytes < 2500 * DIM * 4
        assert index.report.main == 2500
        check(index, source)
        builder.build()
        assert index.report.kind == "hnsw"
        check(index, source)


def test_erasing_leaves_nothing(builder: Turns, tmp_path: Path) -> None:
    source, folder = DictSource(), tmp_path / "c"
    index = opened(source, builder, folder)
    put(index, source, 2500)
    builder.build()
    put(index, source, 2100, seed=1)
    index.close(erase=True)
    builder.build()
    assert not folder.exists()


def test_searches_beside_writes_and_builds_see_whole_writes(thread: Builder, tmp_path: Path) -> None:
    """Replace ten vectors by ten others in each write. A search must find all and only the vectors of one state."""
    source = DictSource()
    index = opened(source, thread, tmp_path, Plan(least=200, dead=0.1, tail=0.1, kinds=("hnsw",)))
    vectors = clustered(600)
    index.change(NO_KEYS, source.put(vectors), vectors)
    wrong: list[str] = []
    stop = threading.Event()

    def look() -> None:
        queries = clustered(3, seed=9)
        while not stop.is_set():
            least = low[0]
            for exact in (False, True):
                for ranking in index.search(queries, 650, exact=exact):
                    if len(ranking.keys) != 600 or ranking.keys.min() < least:
                        wrong.append(f"{len(ranking.keys)} {ranking.keys.min()} {least}")

    low = [1]
    threads = [threading.Thread(target=look) for _ in range(2)]
    for one in threads:
        one.start()
    for round_ in range(120):
        gone, new = keys(range(10 * round_ + 1, 10 * round_ + 11)), clustered(10, seed=round_)
        source.take(gone)
        index.change(gone, source.put(new), new)
        low[0] = 10 * round_ + 11
    stop.set()
    for one in threads:
        one.join()
    assert wrong == []
    thread.close()
    index.close()
    with closing(opened(source, Turns(), tmp_path)) as again:
        check(again, source)


def test_kinds_of_the_plan_exist() -> None:
    assert set(Plan().kinds) <= KINDS.keys()
