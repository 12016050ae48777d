"""What is done around a recording, with a graph that takes the computation again; `test_cuda` has real ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from training.machine.graphs import MET, RecordingError, Replayed

POOL = (0, 7)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor

    def tensors(self) -> Sequence[Tensor]:
        return list(self)

    def holding(self, tensors: Sequence[Tensor]) -> Pair:
        return Pair(*tensors)


class Dot:
    """The dot product, and how often it was computed; each time it notes whether Python may collect."""

    def __init__(self) -> None:
        self.launched = 0
        self.collecting: list[bool] = []

    def __call__(self, pair: Pair) -> dict[str, Tensor]:
        self.launched += 1
        self.collecting.append(gc.isenabled())
        return {"dot": (pair.left * pair.right).sum(), "size": torch.tensor(float(len(pair.left)))}


class Graph:
    """Replays by computing again what it saw computed, in the memory that it saw."""

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
    def recording(graph: Graph, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
        """One pool for all graphs; and other threads may ask CUDA for memory the while."""
        assert (pool, capture_error_mode) == (POOL, "thread_local")

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
    return dot


def pairs(size: int, count: int) -> list[Pair]:
    return [Pair(torch.randn(size), torch.randn(size)) for _ in range(count)]


def test_what_is_replayed_is_what_was_given_last(dot: Dot) -> None:
    replayed: Replayed[Pair] = Replayed()
    given = [pair for two in zip(pairs(3, 8), pairs(5, 8), strict=True) for pair in two]
    found = [replayed(dot, pair) for pair in given]
    for pair, values in zip(given, found, strict=True):
        assert values["dot"].item() == pytest.approx((pair.left @ pair.right).item(), abs=1e-5)
        assert values["size"].item() == len(pair.left), "a value that nothing writes over"
    assert dot.launched == 2 * (MET + 1), "each shape so often, and once to be recorded"
    assert len(Graph.made) == 2


def test_a_shape_that_is_rare_is_never_recorded(dot: Dot) -> None:
    replayed: Replayed[Pair] = Replayed()
    for size in range(1, 6):
        for pair in pairs(size, MET):
            replayed(dot, pair)
    assert not Graph.made and dot.launched == 5 * MET


def test_a_recording_knows_who_draws_and_is_not_disturbed(dot: Dot) -> None:
    generator = torch.Generator()
    replayed: Replayed[Pair] = Replayed([generator])
    for pair in pairs(2, MET + 2):
        replayed(dot, pair)
    assert [graph.generators for graph in Graph.made] == [[generator]]
    assert dot.collecting == [True] * MET + [False]
    assert gc.isenabled()


def test_a_recording_that_fails_names_the_way_out(dot: Dot, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def failing(*_: Any, **__: Any) -> Iterator[None]:
        yield
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the documentation")

    monkeypatch.setattr(torch.cuda, "graph", failing)
    replayed: Replayed[Pair] = Replayed()
    *others, last = pairs(2, MET + 1)
    for pair in others:
        replayed(dot, pair)
    with pytest.raises(
        RecordingError, match=r"Tried to allocate 2 GiB\.; --set chunk_size=N leaves steps as they are$"
    ):
        replayed(dot, last)
    assert gc.isenabled()
