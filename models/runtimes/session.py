"""ONNX Runtime sessions on a CPU or a GPU, with the options and the warm-up of CUDA."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from models.runtimes.base import Embedded, Floats, Ids

log = logging.getLogger(__name__)

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OUTPUTS = ("sentence_embedding", "norm")
TOKEN_OUTPUT = "token_embeddings"
"""Name of the output with the vectors of all tokens. Graphs that were exported by version 1.0 lack this output."""

Provider = str | tuple[str, dict[str, str]]

CUDA_OPTIONS = {
    # By default, the memory arena doubles whenever it grows. Here the first batch of the warm-up is the largest batch,
    # so exact growth is enough.
    "arena_extend_strategy": "kSameAsRequested",
    # TF32 is off, because it has only 10 bits of mantissa and float32 is the reference for comparisons. Users who need
    # speed can choose fp16.
    "use_tf32": "0",
}
CUDA_PROVIDERS: tuple[Provider, ...] = ((CUDA, CUDA_OPTIONS), CPU)
CUDA_BATCH_TOKENS = 16_384
SHORTEST_BUCKET = 16
"""Shortest warm-up length in tokens. Each further length is twice as long."""


class Session:
    """An ONNX Runtime session on the first of `providers` that works, with inputs and outputs in device memory."""

    def __init__(self, graph: Path, providers: Sequence[Provider], threads: int) -> None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        # Without this setting, ONNX Runtime would store a plan for each batch shape.
        settings.enable_mem_pattern = False
        if providers[0] != CPU:
            _load_cuda()
        self._session = onnxruntime.InferenceSession(str(graph), settings, providers=list(providers))
        self._inputs = {node.name for node in self._session.get_inputs()}
        shapes = {node.name: node.shape for node in self._session.get_outputs()}
        self.token_dim: int | None = shapes[TOKEN_OUTPUT][-1] if TOKEN_OUTPUT in shapes else None
        self.provider: str = self._session.get_providers()[0]
        self.device = "cpu" if self.provider == CPU else "cuda"

    def run(self, ids: Ids, mask: Ids) -> Embedded:
        return Embedded(*self.outputs(OUTPUTS, ids, mask))

    def run_tokens(self, ids: Ids, mask: Ids) -> Floats:
        (vectors,) = self.outputs([TOKEN_OUTPUT], ids, mask)
        return vectors

    def outputs(self, names: Sequence[str], ids: Ids, mask: Ids, types: Ids | None = None) -> list[Floats]:
        """Run the graph, and return its outputs called `names`.

        If `types` is None, all token types are zero. Each input is copied to the device once, and each output is copied
        back once.
        """
        feed = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros_like(ids) if types is None else types
        binding = self._session.io_binding()
        for name, batch in feed.items():
            binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(batch, self.device, 0))
        for name in names:
            binding.bind_output(name, self.device, 0)
        self._session.run_with_iobinding(binding)
        outputs: list[Floats] = binding.copy_outputs_to_cpu()
        return outputs


@cache
def _load_cuda() -> None:
    """Load CUDA's libraries from Python packages, if they are installed.

    System libraries are found without this function.
    """
    said = StringIO()
    with redirect_stdout(said):
        onnxruntime.preload_dlls()
    for line in filter(None, said.getvalue().splitlines()):
        log.warning("%s", line)


def warm_up(run: Callable[[Ids, Ids], object], longest: int) -> None:
    """Run a full batch and a single text of each warm-up length.

    The first use of a shape loads kernels and allocates memory.
    """
    for length in reversed(list(buckets(longest))):
        for rows in (max(1, CUDA_BATCH_TOKENS // length), 1):
            batch = np.ones((rows, length), dtype=np.int64)
            run(batch, batch)


def buckets(longest: int) -> Iterator[int]:
    """Yield the lengths in tokens for the warm-up, ascending, up to `longest`."""
    length = SHORTEST_BUCKET
    while length < longest:
        yield length
        length *= 2
    yield longest
