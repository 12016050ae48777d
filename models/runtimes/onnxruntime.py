"""ONNX Runtime on a CPU or a CUDA device, for the bundle's graphs of all precisions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import onnxruntime

from models.bundle.bundle import Bundle, BundleError
from models.names import Device
from models.runtimes.base import CPU_BATCH_TOKENS, Embedded, Floats, Ids, Options, RuntimeUnavailable
from models.runtimes.session import CPU, CUDA, CUDA_BATCH_TOKENS, CUDA_PROVIDERS, Provider, Session, warm_up


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
