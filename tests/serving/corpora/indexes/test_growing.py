"""Tests of a tail that outgrows its limit before a build: a graph searches it beside the main part."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.runtimes.base import Floats
from serving.corpora.indexes import live
from serving.corpora.indexes.building import Builder, Plan
from serving.corpora.indexes.kind import BuildError, Pause
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.indexes.state import Main
from tests.serving.corpora.indexes.following import Turns, check, opened, put, take
from tests.serving.corpora.indexes.sources import DictSource

pytestmark = pytest.mark.usefixtures("approximate")
PLAN = Plan(least=800, kinds=("hnsw",))
BOUND = PLAN.least // 2


def followed(index: LiveIndex, source: DictSource, builder: Turns, rounds: int) -> list[int]:
    """Return the size of the tail after the brief work of each round of 200 vectors."""
    tails = []
    for round_ in range(rounds):
        put(index, source, 200, seed=round_ + 1)
        builder.grow()
        tails.append(index.report.tail)
    return tails


@pytest.mark.slow
def test_the_exact_tail_is_bounded_however_long_a_build_takes(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, tails = DictSource(), list[int]()
    with closing(opened(source, builder, tmp_path, PLAN)) as index:
        put(index, source, 1000)
        builder.build()
        put(index, source, 840, seed=99)

        def meanwhile(place: str) -> None:
            if place == "index.compaction":
                tails.extend(followed(index, source, builder, 5))
                take(index, source, [*range(990, 1010), 1900, 2200, 2800])
                check(index, source)

        with monkeypatch.context() as patch:
            patch.setattr(live, "reach", meanwhile)
            builder.build()
        assert max(tails) <= BOUND
        check(index, source)
        assert len(index._seen.parts) == 2, "what the build took in is not beside it any more"
        assert index.report.tail <= BOUND
        assert index.report.recall >= index.report.target
        tails = followed(index, source, builder, 3)
        assert max(tails) <= BOUND
        check(index, source)
        builder.build()
        report = index.report
        assert (report.main, report.dead, report.tail) == (len(source.held), 0, 0)
        assert source.graves == set()
        check(index, source)
        followed(index, source, builder, 3)
        assert len(index._seen.parts) == 2
    with closing(opened(source, builder, tmp_path, PLAN)) as again:
        assert len(again._seen.parts) == 1
        check(again, source)
        builder.grow()
        assert again.report.tail <= BOUND
        check(again, source)


def test_a_first_build_that_has_to_wait_bounds_it_too(builder: Turns, tmp_path: Path) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path, PLAN)) as index:
        put(index, source, 1160)
        builder.grow()
        assert (index.report.kind, index.report.tail) == ("exact", 1160)
        followed(index, source, builder, 2)
        first = index.report
        assert first.queries == first.tail > 0, "measured with what was not taken in"
        assert first.build_seconds > 0
        followed(index, source, builder, 2)
        report = index.report
        assert (report.kind, report.state) == ("hnsw", "building")
        assert report.tail <= BOUND
        assert report.build_seconds > first.build_seconds
        check(index, source)
        builder.build()
        assert (index.report.main, index.report.tail) == (1960, 0)


def test_what_goes_while_a_graph_grows_is_not_in_it(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, grown = DictSource(), live.grown
    with closing(opened(source, builder, tmp_path, PLAN)) as index:
        put(index, source, 1000)
        builder.build()
        put(index, source, 600, seed=1)

        def meanwhile(*given: Any, **named: Any) -> Main:
            take(index, source, [1, 1001, 1002, 1599])
            put(index, source, 50, seed=2)
            return grown(*given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(live, "grown", meanwhile)
            builder.grow()
        assert (index.report.dead, len(index._seen.parts)) == (3, 2)
        check(index, source)
        put(index, source, 600, seed=1)

        def built(*given: Any, **named: Any) -> Main:
            index.build_now()
            return grown(*given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(live, "grown", built)
            builder.grow()
        assert (index.report.main, index.report.tail, len(index._seen.parts)) == (len(source.held), 0, 1)
        check(index, source)


def test_where_a_graph_does_not_reach_the_target_the_tail_stays_exact(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def misses(*_: object, **named: object) -> None:
        raise BuildError("hnsw reaches a recall of 0.1, not surely 0.9")

    source = DictSource()
    with closing(opened(source, builder, tmp_path, PLAN)) as index:
        put(index, source, 1000)
        builder.build()
        with monkeypatch.context() as patch:
            patch.setattr(live, "grown", misses)
            assert followed(index, source, builder, 3) == [200, 400, 600]
        assert caplog.text.count("hnsw reaches a recall of 0.1") == 1
        assert followed(index, source, builder, 2) == [800, 1000]
        check(index, source)
        builder.build()
        assert max(followed(index, source, builder, 4)) <= BOUND


def test_a_graph_has_vectors_to_be_measured_with_however_small_a_corpus_is_indexed(
    builder: Turns, tmp_path: Path
) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path, Plan(least=10))) as index:
        put(index, source, 40)
        builder.build()
        for seed in range(5):
            put(index, source, 4, seed=seed)
            builder.grow()
            check(index, source)
        assert index.report.tail < 20
        assert index.report.recall >= index.report.target


def test_nothing_grows_where_all_is_searched_exactly(builder: Turns, tmp_path: Path) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path, Plan(least=2000, kinds=()))) as index:
        put(index, source, 5000)
        builder.build()
        put(index, source, 5000, seed=1)
        assert not builder.brief
        check(index, source)


def test_what_is_brief_is_done_between_the_steps_of_what_takes_long() -> None:
    builder, order, begun, go_on, done = Builder(), list[str](), threading.Event(), threading.Event(), threading.Event()

    def long(pause: Pause) -> None:
        begun.set()
        assert go_on.wait(20)
        order.append("long begins")
        pause()
        order.append("long ends")

    def fails(_: Pause) -> None:
        order.append("brief fails")
        raise RuntimeError("of another corpus")

    with closing(builder):
        builder.submit(long)
        assert begun.wait(20)
        builder.submit(lambda _: done.set())
        builder.submit(fails, brief=True)
        builder.submit(lambda _: order.append("brief"), brief=True)
        go_on.set()
        assert done.wait(20)
    assert order == ["long begins", "brief fails", "brief", "long ends"]


@pytest.mark.slow
@pytest.mark.parametrize("removed", [0, 300])
def test_a_graph_holds_the_vectors_it_was_given(builder: Turns, tmp_path: Path, removed: int) -> None:
    """Check FAISS's own memory, which is read when the graph is copied, searched exactly or used for a build."""
    source = DictSource()
    with closing(opened(source, builder, tmp_path, PLAN)) as index:
        put(index, source, 1000)
        builder.build()
        followed(index, source, builder, 6)
        take(index, source, list(range(1040, 1040 + removed)))
        grown = index._seen.parts[1]
        held: list[Floats] = [source.held[key] for key in grown.main.keys[grown.marks.live].tolist()]
        assert np.array_equal(grown.main.vectors[grown.marks.live], np.stack(held))
        check(index, source)
        index.build_now()
        check(index, source)
