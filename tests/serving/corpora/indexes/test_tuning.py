"""Tests of tuning: the cheapest effort reaches the recall target on vectors that are not in the index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.runtimes.base import Floats
from serving.corpora.indexes import KINDS, building
from serving.corpora.indexes.building import Builder, BuildInput, Plan, build, free_memory, held_out, recall, tune
from serving.corpora.indexes.exact import nearest
from serving.corpora.indexes.kind import BuildError, CancelledError, Pause
from serving.corpora.indexes.saved import write_vectors
from serving.corpora.indexes.state import Approximate, Main, Marks, Tuning
from serving.corpora.ports import Ranking
from tests.serving.corpora.indexes.vectors import clustered, keys

COUNT, HELD, DIM = 4000, 400, 10


@pytest.fixture(autouse=True)
def filters_are_not_searched_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("state", "building"):
        monkeypatch.setattr(f"serving.corpora.indexes.{module}.EXACT_ROWS", 100)


def stop_never() -> None:
    pass


def stop() -> None:
    raise CancelledError


def only(efforts: list[int]) -> Callable[..., list[int]]:
    return lambda *_: efforts


def unspread(count: int, seed: int) -> Floats:
    """Return noise without clusters, which is hard to index."""
    return clustered(count, dim=DIM, seed=seed, clusters=1)


def main(name: str) -> Main:
    vectors = unspread(COUNT, 0)
    kind = KINDS[name]
    parameters = kind.parameters(*vectors.shape)
    built = Approximate(kind, parameters, kind.build(vectors, parameters, stop_never))
    return Main(keys(range(1, COUNT + 1)), vectors, built, Tuning(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hnsw", "ivf-flat"])
def test_the_effort_reaches_the_target_on_fresh_queries_at_every_share(name: str) -> None:
    built = main(name)
    found = tune(built, unspread(HELD, 1), 0.9, stop_never)
    assert found.queries == HELD
    assert set(found.recalls) == set(building.SHARES)
    tuned = Main(built.keys, built.vectors, built.approximate, found)
    fresh = unspread(400, 2)
    rng = np.random.default_rng(5)
    for share in (1.0, 0.7, 0.5, 0.2, 0.05, 0.005):
        marks = Marks(COUNT, live=rng.random(COUNT) < share)
        truth = nearest(built.keys, built.vectors, fresh, 10, marks.rows)
        assert recall(tuned.search(fresh, 10, marks), truth).mean() >= 0.9


def test_the_effort_is_the_cheapest() -> None:
    built = main("hnsw")
    efforts = list(built.efforts())
    queries = unspread(HELD, 1)
    low, high = (tune(built, queries, target, stop_never, shares=[1.0]).efforts[1.0] for target in (0.6, 0.98))
    assert low < high
    truth = nearest(built.keys, built.vectors, queries, 10)
    cheaper = efforts[efforts.index(high) - 1]
    measured = recall(built.candidates(queries, 10, cheaper, None), truth)
    assert measured.mean() - building.CONFIDENCE * measured.std() / HELD**0.5 < 0.98


def test_less_share_more_effort() -> None:
    found = Tuning(0.95, efforts={1.0: 20, 0.5: 40, 0.05: 400})
    efforts = [found.effort(share) for share in (1.0, 0.9, 0.5, 0.3, 0.05)]
    assert efforts == sorted(efforts, key=lambda effort: effort or 0)
    assert (efforts[0], efforts[2], efforts[4]) == (20, 40, 400)
    assert found.effort(0.01) is None


def test_what_no_effort_reaches_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.corpora.indexes.approximate.Ivf.efforts", only([1, 2]))
    with pytest.raises(BuildError, match=r"ivf-flat reaches a recall of 0\.\d+, which is not certainly 0.99"):
        tune(main("ivf-flat"), unspread(HELD, 1), 0.99, stop_never)


def test_a_share_that_no_effort_reaches_is_searched_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.corpora.indexes.approximate.Hnsw.efforts", only([20]))
    built = main("hnsw")
    found = tune(built, unspread(HELD, 1), 0.8, stop_never)
    assert 1.0 in found.efforts
    assert 0.05 not in found.efforts
    assert found.recalls[0.05] == 1.0
    tuned = Main(built.keys, built.vectors, built.approximate, found)
    fresh, marks = unspread(50, 2), Marks(COUNT, rows=np.arange(0, COUNT, 20))
    truth = nearest(built.keys, built.vectors, fresh, 10, marks.rows)
    assert [one.keys.tolist() for one in tuned.search(fresh, 10, marks)] == [one.keys.tolist() for one in truth]


def test_recall_counts_what_ties() -> None:
    def ranking(*scores: float) -> Ranking:
        return Ranking(keys(range(len(scores))), np.array(scores, np.float32))

    truth = [ranking(0.9, 0.5), ranking(0.9, 0.5), ranking(0.9, 0.5), ranking()]
    found = [ranking(0.9, 0.5), ranking(0.9, 0.4), ranking(), ranking()]
    assert recall(found, truth).tolist() == [1.0, 0.5, 0.0, 1.0]


def test_held_out_are_few_and_the_same_every_time() -> None:
    assert len(held_out(100_000)) == 400
    assert len(held_out(50)) == 5
    assert held_out(1000).tolist() == sorted(set(held_out(1000).tolist()))
    assert held_out(1000).tolist() == held_out(1000).tolist()


def given(folder: Path) -> BuildInput:
    vectors = unspread(COUNT, 0)
    return BuildInput(folder, *write_vectors(folder, DIM, [(keys(range(1, COUNT + 1)), vectors)]), HELD)


def test_the_first_kind_that_reaches_the_target_is_built(tmp_path: Path) -> None:
    built = build(given(tmp_path / "1"), 0.9, Plan(1000, kinds=("hnsw", "ivf-flat")), KINDS, stop_never)
    assert built.approximate is not None
    assert built.approximate.kind.name == "hnsw"
    assert built.approximate.built.ntotal == COUNT
    assert built.tuning.recalls[1.0] >= 0.9
    assert built.tuning.queries == HELD
    assert built.reason is None


@pytest.mark.slow
def test_where_none_does_the_next_is_tried_and_then_exact_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.corpora.indexes.approximate.Hnsw.efforts", only([10]))
    built = build(given(tmp_path / "1"), 0.97, Plan(1000, kinds=("hnsw", "ivf-flat")), KINDS, stop_never)
    assert built.approximate is not None
    assert built.approximate.kind.name == "ivf-flat"
    built = build(given(tmp_path / "2"), 0.97, Plan(1000, kinds=("hnsw",)), KINDS, stop_never)
    assert built.approximate is None
    assert built.reason is not None
    assert "hnsw reaches a recall of 0." in built.reason


def test_where_memory_is_short_vectors_are_quantised(tmp_path: Path) -> None:
    memory = KINDS["ivf-sq8"].memory(COUNT, DIM)
    built = build(given(tmp_path / "1"), 0.9, Plan(1000, memory=memory), KINDS, stop_never)
    assert built.approximate is not None
    assert built.approximate.kind.name == "ivf-sq8"
    built = build(given(tmp_path / "2"), 0.9, Plan(1000, memory=0), KINDS, stop_never)
    assert built.approximate is None
    assert built.reason is not None
    assert "does not fit in memory" in built.reason
    kinds = {kind.name for kind in Plan(memory=10**12).fitting(KINDS, 6_000_000, 384)}
    assert kinds == {"ivf-flat", "ivf-sq8", "ivf-pq"}


def test_a_build_can_be_cancelled(tmp_path: Path) -> None:
    with pytest.raises(CancelledError):
        build(given(tmp_path / "1"), 0.9, Plan(1000), KINDS, stop)


def test_when_a_build_is_wanted() -> None:
    plan = Plan(least=100, dead=0.2, tail=0.1)
    assert not plan.wanted(0, 0, 99)
    assert plan.wanted(0, 0, 100)
    assert not plan.wanted(1000, 200, 99)
    assert plan.wanted(1000, 201, 0)
    assert not plan.wanted(10_000, 0, 1000)
    assert plan.wanted(10_000, 0, 1001)


def test_free_memory_is_the_machine_s_or_the_group_s(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    group = tmp_path / "group"
    assert free_memory(tmp_path / "meminfo", group) == 5000 * 1024
    group.mkdir()
    (group / "memory.current").write_text("700000\n")
    (group / "memory.stat").write_text("anon 5\ninactive_file 50000\n")
    (group / "memory.max").write_text("max\n")
    assert free_memory(tmp_path / "meminfo", group) == 5000 * 1024
    (group / "memory.max").write_text("1000000\n")
    assert free_memory(tmp_path / "meminfo", group) == 350_000


def test_the_builder_works_in_order_and_stops() -> None:
    builder, done = Builder(), []
    builder.submit(lambda _: done.append(1))
    builder.submit(lambda _: done.append(2))
    finished = []

    def work(pause: Pause) -> None:
        finished.append(True)
        while True:
            pause()

    builder.submit(work)
    while not finished:
        pass
    builder.close()
    builder.submit(lambda _: done.append(3))
    assert done == [1, 2]
