"""ONNX Runtime on a CPU or a CUDA device, for the bundle's graphs of all precisions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from ctypes import CDLL, byref, c_int, c_size_t, create_string_buffer
from functools import cache, cached_property
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from models.bundle.bundle import Bundle, BundleError
from models.names import Device
from models.runtimes.base import CPU_BATCH_TOKENS, Embedded, Floats, Ids, Options, RuntimeUnavailable

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
    """Run a full batch and a single text of each warm-up length, up to `longest` tokens.

    The first use of a shape is slow, because it loads kernels and allocates memory.
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


class OnnxRuntime:
    """ONNX Runtime with one of a bundle's graphs.

    On CUDA, there is one session. On a CPU, one session runs concurrent batches, and a second session uses all threads
    for a single batch.
    """

    name: ClassVar = "onnxruntime"
    length_step = 1

    def __init__(self, bundle: Bundle, precision: str, options: Options) -> None:
        if precision not in bundle.graphs:
            raise BundleError(f"{bundle.folder}: no {precision} graph; available: {', '.join(bundle.graphs)}")
        self.precision = precision
        self._graph, self._options = bundle.graphs[precision], options
        self.device = "cpu"
        self.streams, self.batch_tokens = options.cpu_streams, CPU_BATCH_TOKENS
        if _providers(options.device) != [CPU] or self.streams == 1 or options.long_lived:
            self._concurrent = self._alone
            self.device = self._alone.device
        if self.device == "cuda":
            self.streams, self.batch_tokens = 1, CUDA_BATCH_TOKENS
            warm_up(self.run, bundle.manifest.max_length)
        elif self.streams > 1:
            # The calling threads compute, too. Together with the threads of the session's shared pool, they are
            # `threads` threads.
            self._concurrent = Session(self._graph, [CPU], options.cpu_threads - self.streams + 1)

    @cached_property
    def _alone(self) -> Session:
        return _session(self._graph, self._options.device, self._options.cpu_threads)

    def run(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Embedded:
        return (self._alone if alone else self._concurrent).run(ids, mask)

    @property
    def token_dim(self) -> int | None:
        return self._concurrent.token_dim

    def run_tokens(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Floats:
        return (self._alone if alone else self._concurrent).run_tokens(ids, mask)

    @staticmethod
    def precisions(bundle: Bundle, options: Options) -> Sequence[str]:
        _providers(options.device)
        return list(bundle.graphs)

    @staticmethod
    def facts() -> dict[str, Any]:
        return {"version": onnxruntime.__version__, "providers": onnxruntime.get_available_providers()}


def _session(graph: Path, device: Device, threads: int) -> Session:
    session = Session(graph, _providers(device), threads)
    if device == "cuda" and session.device != "cuda":
        raise RuntimeUnavailable(
            "CUDA was requested, but ONNX Runtime could not start on it: NVIDIA's driver, CUDA or cuDNN is missing "
            "(`pip install 'onnxruntime-gpu[cuda,cudnn]'` brings the last two), or the device has no memory left"
        )
    return session


def _providers(device: Device) -> Sequence[Provider]:
    present = CUDA in onnxruntime.get_available_providers()
    if device == "cuda" and not present:
        raise RuntimeUnavailable("CUDA was requested, but this ONNX Runtime has no CUDA: install the `gpu` extra")
    return CUDA_PROVIDERS if present and device != "cpu" else [CPU]


def gpu(device: Device) -> str | None:
    """Return name and memory of the GPU that CUDA uses.

    Return None if there is no such GPU, `device` is "cpu", or this ONNX Runtime has no CUDA. The driver is asked,
    because ONNX Runtime's providers only say what the package was compiled for.

    Raises:
        RuntimeUnavailable: `device` is "cuda", but this ONNX Runtime has no CUDA.
    """
    if _providers(device) == [CPU]:
        return None
    try:
        driver = CDLL("libcuda.so.1")
    except OSError:
        return None
    number, name, memory = c_int(), create_string_buffer(256), c_size_t()
    if driver.cuInit(0) or driver.cuDeviceGet(byref(number), 0):
        return None
    driver.cuDeviceGetName(name, len(name), number)
    driver.cuDeviceTotalMem_v2(byref(memory), number)
    return f"{name.value.decode()}, {memory.value >> 20} MiB"
