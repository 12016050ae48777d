"""CUDA graphs: computations that are recorded after a few calls and then launched with a single call.

A step of BERT-base is about 1,400 kernel launches of a few microseconds each, and Python takes longer to launch a
kernel than the device to run it. A graph needs one launch. Each replay draws new random numbers from the generators'
current states, so results equal those of an unrecorded step.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from models.errors import Failed, first_line

RUNS_BEFORE_RECORDING = 3
"""Number of calls with the same input shapes before the computation is recorded.

During these calls, kernels are chosen and loaded, and the optimiser's state is created.
"""
MAX_GRAPHS = 16
"""Maximum number of recorded shapes.

The limit exists because graphs reserve memory that nothing else can use.
"""

Shapes = tuple[torch.Size, ...]


log = logging.getLogger(__name__)
G = TypeVar("G")
"""Type of a computation's inputs: nested tuples and lists of tensors, and values that follow from tensor shapes."""


class RecordedGraph(NamedTuple):
    """A CUDA graph, and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    given: Sequence[Tensor]
    found: dict[str, Tensor]


class CudaGraphs(Generic[G]):
    """Launcher that records a computation on a CUDA device, and replays the recording.

    The computation returns named numbers and may change weights in place. It must not wait for the device. Tensors that
    it reads or writes, apart from its arguments and results, must keep their addresses.

    A recording is valid only for arguments of the same shapes. There are at most `MAX_GRAPHS` recordings. For other
    shapes, the computation runs kernel by kernel. If the device has no memory for a recording, all recordings are
    removed, and nothing more is recorded.
    """

    def __init__(self, draws: Sequence[torch.Generator] = ()) -> None:
        """Register `draws`, the random generators that the computation uses besides torch's default one."""
        self._draws = draws
        self._met: Counter[Shapes] = Counter()
        self._recorded: dict[Shapes, RecordedGraph] = {}
        self._room = True
        self._memory = torch.cuda.graph_pool_handle()
        # The stream must be on the current device. Torch's default stream would be on the device of the first
        # recording.
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, compute: Callable[[G], dict[str, Tensor]], given: G) -> dict[str, Tensor]:
        """Return the result of `compute(given)`, without waiting for the device.

        For tensor shapes that occur often, the computation is recorded as a CUDA graph, and later calls replay the
        graph. `compute` must be the same in every call.

        Raises:
            Failed: the computation can't be recorded as a CUDA graph, for example because it waits for the device; the
                message names a setting for training without CUDA graphs.
        """
        tensors = _tensors(given)
        shapes = tuple(each.shape for each in tensors)
        if (recorded := self._recorded.get(shapes) or self._ripe(compute, given, shapes)) is None:
            return compute(given)
        graph, places, found = recorded
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor)
        graph.replay()
        # The next replay overwrites the results, so they are copied, all in one operation.
        values = torch.stack([value.float() for value in found.values()]).unbind()
        return dict(zip(found, values, strict=True))

    def _ripe(self, compute: Callable[[G], dict[str, Tensor]], given: G, shapes: Shapes) -> RecordedGraph | None:
        """Record a graph for inputs of the shapes `shapes`, and return it.

        Return None if the shapes have not occurred often enough, or if no more graphs can be recorded.
        """
        self._met[shapes] += 1
        if self._met[shapes] <= RUNS_BEFORE_RECORDING or len(self._recorded) >= MAX_GRAPHS or not self._room:
            return None
        try:
            self._recorded[shapes] = self._record(compute, given)
        except torch.OutOfMemoryError as error:
            log.warning(
                "steps are launched kernel by kernel from now on, because there is no memory to record them: %s",
                first_line(error),
            )
            self._room = False
            self._recorded.clear()  # Free the graphs' memory, which unrecorded steps could not use.
        return self._recorded.get(shapes)

    def _record(self, compute: Callable[[G], dict[str, Tensor]], given: G) -> RecordedGraph:
        """Record the graph without running the computation.

        Other threads are allowed to allocate CUDA memory meanwhile, because they prepare the next batch.
        """
        graph = torch.cuda.CUDAGraph()
        for generator in self._draws:
            graph.register_generator_state(generator)
        copied = tree_map_only(Tensor, Tensor.clone, given)
        current = torch.cuda.current_stream()
        try:
            with (
                no_garbage_collection(),
                torch.cuda.graph(graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"),
            ):
                found = compute(copied)
        # The error only says that the capture failed. The cause is in the error's context.
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # Torch leaves the capture stream current if a recording fails.
            cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            if isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
            raise Failed(
                f"a step can't be recorded: {first_line(cause)}; start the run with --set chunk_size=N, which "
                "records no steps"
            ) from error
        return RecordedGraph(graph, _tensors(copied), found)


def _tensors(given: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable Python's garbage collector inside the `with` block.

    The collector may free a CUDA tensor or CUDA graph. If this happens while a CUDA graph is recorded, the recording
    fails.
    """
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
