"""Tests of the code around CUDA graphs, with a fake graph. `test_cuda` uses real graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from models.errors import Failed
from training.machine import graphs
from training.machine.graphs import RUNS_BEFORE_RECORDING, CudaGraphs

POOL, STREAM, DEFAULT = (0, 7), "a stream of its own", "the stream of before"


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Dot:
    """Dot product that counts its computations and records whether garbage collection is enabled."""

    def __init__(self) -> None:
        self.launched = 0
        self.collecting: list[bool] = []

    def __call__(self, pair: Pair) -> dict[str, Tensor]:
        self.launched += 1
        self.collecting.append(gc.isenabled())
        return {"dot": (pair.left * pair.right).sum(), "size": torch.tensor(float(len(pair.left)))}


class Graph:
    """Fake graph that replays by repeating the computation in the recorded memory."""

    made: ClassVar[list[Graph]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.generators: list[torch.Generator] = []
        self.take: Callable[[], None] = lambda: pytest.fail("nothing was recorded")

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def replay(self) -> None:
        self.take()


@pytest.fixture
def dot(monkeypatch: pytest.MonkeyPatch) -> Dot:
    dot, found = Dot(), Dot.__call__

    @contextmanager
    def recording(graph: Graph, *, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        """Check that all graphs share one pool and one stream, and that other threads may allocate CUDA memory."""
        assert (pool, stream, capture_error_mode) == (POOL, STREAM, "thread_local")

        def seen(self: Dot, pair: Pair) -> dict[str, Tensor]:
            values = found(self, pair)

            def again() -> None:
                values["dot"].copy_((pair.left * pair.right).sum())

            graph.take = again
            return values

        with monkeypatch.context() as patch:
            patch.setattr(Dot, "__call__", seen)
            yield

    Graph.made = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: STREAM)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: DEFAULT)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: None)
    return dot


def pairs(size: int, count: int) -> list[Pair]:
    return [Pair(torch.randn(size), torch.randn(size)) for _ in range(count)]


def test_what_is_replayed_is_what_was_given_last(dot: Dot) -> None:
    replayed: CudaGraphs[Pair] = CudaGraphs()
    given = [pair for two in zip(pairs(3, 8), pairs(5, 8), strict=True) for pair in two]
    found = [replayed(dot, pair) for pair in given]
    for pair, values in zip(given, found, strict=True):
        assert values["dot"].item() == pytest.approx((pair.left @ pair.right).item(), abs=1e-5)
        assert values["size"].item() == len(pair.left), "a value that nothing writes over"
    assert dot.launched == 2 * (RUNS_BEFORE_RECORDING + 1), "each shape so often, and once to be recorded"
    assert len(Graph.made) == 2


def test_a_shape_that_is_rare_is_never_recorded(dot: Dot) -> None:
    replayed: CudaGraphs[Pair] = CudaGraphs()
    for size in range(1, 6):
        for pair in pairs(size, RUNS_BEFORE_RECORDING):
            replayed(dot, pair)
    assert not Graph.made and dot.launched == 5 * RUNS_BEFORE_RECORDING


def test_a_recording_knows_who_draws_and_is_not_disturbed(dot: Dot) -> None:
    generator = torch.Generator()
    replayed: CudaGraphs[Pair] = CudaGraphs([generator])
    for pair in pairs(2, RUNS_BEFORE_RECORDING + 2):
        replayed(dot, pair)
    assert [graph.generators for graph in Graph.made] == [[generator]]
    assert dot.collecting == [True] * RUNS_BEFORE_RECORDING + [False]
    assert gc.isenabled()


def test_so_many_shapes_are_recorded_and_no_more(dot: Dot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    replayed: CudaGraphs[Pair] = CudaGraphs()
    for size in (1, 2, 3):
        for pair in pairs(size, RUNS_BEFORE_RECORDING + 3):
            assert replayed(dot, pair)["dot"].item() == pytest.approx((pair.left @ pair.right).item(), abs=1e-5)
    assert len(Graph.made) == 2
    assert dot.launched == 2 * (RUNS_BEFORE_RECORDING + 1) + (RUNS_BEFORE_RECORDING + 3)


@pytest.mark.parametrize("broken", [False, True])
def test_without_room_for_one_all_are_launched(
    dot: Dot, broken: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Let a recording fail for lack of memory. All recorded graphs are then freed, because launches need their memory.

    Torch reports the lack of memory also at the end of the recording.
    """

    @contextmanager
    def full(*_: Any, **__: Any) -> Iterator[None]:
        yield
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        finally:
            if broken:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    replayed: CudaGraphs[Pair] = CudaGraphs()

    def take(size: int, count: int) -> None:
        for pair in pairs(size, count):
            assert replayed(dot, pair)["dot"].item() == pytest.approx((pair.left @ pair.right).item(), abs=1e-5)

    take(2, RUNS_BEFORE_RECORDING + 4)
    assert dot.launched == RUNS_BEFORE_RECORDING + 1 and not caplog.messages
    monkeypatch.setattr(torch.cuda, "graph", full)
    take(3, RUNS_BEFORE_RECORDING + 4)
    take(2, 5)
    take(4, RUNS_BEFORE_RECORDING + 4)
    assert dot.launched == (RUNS_BEFORE_RECORDING + 1) + (RUNS_BEFORE_RECORDING + 4 + 1) + 5 + (
        RUNS_BEFORE_RECORDING + 4
    )
    assert not replayed._recorded and gc.isenabled()
    (message,) = caplog.messages
    assert "there is no memory to record them: CUDA out of memory. Tried to allocate 2 GiB." in message


def test_a_recording_that_fails_names_the_cause_and_the_way_out(dot: Dot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail like torch: the end of a recording reports that it was broken, and the stream stays current."""
    streams: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)

    under_way: list[None] = []

    @contextmanager
    def broken(*_: Any, **__: Any) -> Iterator[None]:
        under_way.append(None)
        try:
            yield
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def waits(pair: Pair) -> dict[str, Tensor]:
        if under_way:
            raise RuntimeError("operation not permitted when stream is capturing\nSee the documentation")
        return dot(pair)

    replayed: CudaGraphs[Pair] = CudaGraphs()
    *others, last = pairs(2, RUNS_BEFORE_RECORDING + 1)
    for pair in others:
        replayed(waits, pair)
    monkeypatch.setattr(torch.cuda, "graph", broken)
    with pytest.raises(Failed, match=r"not permitted when stream is capturing; start the run with --set chunk"):
        replayed(waits, last)
    assert streams == [DEFAULT]
    assert gc.isenabled()
