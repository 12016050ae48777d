"""A computation that CUDA launches at once: its kernels are recorded the first times, and from then on replayed.

A step of a BERT-base is some 1,400 launches of a few microseconds each, and Python takes longer to ask for one than the
device to carry it out. Recorded (CUDA graphs), the host asks once. What is drawn is drawn anew at every replay, from
where the generators stand: the numbers are those of a step that was not recorded.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from models.errors import Failed, first_line

MET = 3
"""Computations of a shape before it is recorded: kernels are chosen and loaded, and an optimiser makes its moments."""
MOST = 16
"""Shapes that are recorded: their memory is for each other alone."""

Shapes = tuple[torch.Size, ...]


class RecordingError(Failed):
    """A computation asks the host for something and can't be recorded; the message says why, and what to change."""


class Given(Protocol):
    """What a computation is given: tensors, and besides them nothing that their shapes do not decide."""

    def tensors(self) -> Sequence[Tensor]:
        """All of them."""

    def holding(self, tensors: Sequence[Tensor]) -> Self:
        """The same with other tensors of the same shapes."""


log = logging.getLogger(__name__)
G = TypeVar("G", bound=Given)


class Recorded(NamedTuple):
    """A graph, and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    given: Sequence[Tensor]
    found: dict[str, Tensor]


class Replayed(Generic[G]):
    """A computation on a CUDA device that finds numbers, by name, and may change weights and the like in place.

    It must not wait for the device, and all that it reads and writes besides must stay where it is. Shapes after `MOST`
    are launched as before; so is everything once the device has no room for a recording.
    """

    def __init__(self, draws: Sequence[torch.Generator] = ()) -> None:
        """`draws` are the generators that it draws from besides torch's own."""
        self._draws = draws
        self._met: Counter[Shapes] = Counter()
        self._recorded: dict[Shapes, Recorded] = {}
        self._room = True
        self._memory = torch.cuda.graph_pool_handle()
        # On the device that is current; torch's own would be on that of the first recording.
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, compute: Callable[[G], dict[str, Tensor]], given: G) -> dict[str, Tensor]:
        """What `compute`, always the same, finds; nothing is waited for.

        Raises:
            RecordingError: it can't be recorded.
        """
        tensors = given.tensors()
        shapes = tuple(each.shape for each in tensors)
        if (recorded := self._recorded.get(shapes) or self._ripe(compute, given, shapes)) is None:
            return compute(given)
        graph, places, found = recorded
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor)
        graph.replay()
        # Copied, all in one: the next replay writes over them.
        values = torch.stack([value.float() for value in found.values()]).unbind()
        return dict(zip(found, values, strict=True))

    def _ripe(self, compute: Callable[[G], dict[str, Tensor]], given: G, shapes: Shapes) -> Recorded | None:
        """A recording, if these shapes have been met often enough to have one."""
        self._met[shapes] += 1
        if self._met[shapes] <= MET or len(self._recorded) >= MOST or not self._room:
            return None
        try:
            self._recorded[shapes] = self._record(compute, given)
        except torch.OutOfMemoryError as error:
            log.warning(
                "steps are launched kernel by kernel from here on: no room to record them: %s", first_line(error)
            )
            self._room = False
            self._recorded.clear()  # what is launched could not have their memory otherwise
        return self._recorded.get(shapes)

    def _record(self, compute: Callable[[G], dict[str, Tensor]], given: G) -> Recorded:
        """Nothing is computed. Other threads, which make the next batch ready, may ask CUDA for memory meanwhile."""
        graph = torch.cuda.CUDAGraph()
        for generator in self._draws:
            graph.register_generator_state(generator)
        places = [each.clone() for each in given.tensors()]
        current = torch.cuda.current_stream()
        try:
            with (
                nothing_collected(),
                torch.cuda.graph(graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"),
            ):
                found = compute(given.holding(places))
        except RuntimeError as error:  # its end says that something was wrong before, and its context what
            torch.cuda.set_stream(current)  # which is left to whoever enters a recording that does not end
            cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            if isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
            raise RecordingError(
                f"a step can't be recorded: {first_line(cause)}; a run begun with --set chunk_size=N has none recorded"
            ) from error
        return Recorded(graph, places, found)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Inside the block Python's collector finds nothing: a tensor or graph of CUDA's given back ends a recording."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
