"""ONNX Runtime on a CPU or a CUDA device: the float32 graph, and whatever graphs of other precisions a bundle has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime

from models.bundle import Bundle, BundleError
from models.runtimes.base import CPU_BATCH_TOKENS, Device, Embedded, Ids, Options, RuntimeUnavailable

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
CUDA_BATCH_TOKENS = 16_384


class OnnxRuntime:
    """On CUDA an ONNX session; on a CPU one whose callers run side by side, and one of all threads."""

    name: ClassVar = "onnxruntime"
    length_step = 1

    def __init__(self, bundle: Bundle, precision: str, options: Options) -> None:
        if precision not in bundle.graphs:
            raise BundleError(f"{bundle.folder}: no {precision} graph; there is {', '.join(bundle.graphs)}")
        self.precision = precision
        graph, threads = bundle.graphs[precision], options.cpu_threads
        self._whole = self._side_by_side = _session(graph, options.device, threads)
        self._inputs = {node.name for node in self._whole.get_inputs()}
        self.device = "cuda" if self._whole.get_providers()[0] == CUDA else "cpu"
        self.streams = options.cpu_streams if self.device == "cpu" else 1
        self.batch_tokens = CPU_BATCH_TOKENS if self.device == "cpu" else CUDA_BATCH_TOKENS
        if self.streams > 1:
            # its callers work too: with the pool that they share there are as many as there are threads
            self._side_by_side = _session(graph, "cpu", threads - self.streams + 1)

    def run(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Embedded:
        """One run of the graph."""
        feed = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros_like(ids)
        session = self._whole if alone else self._side_by_side
        return Embedded(*session.run(["sentence_embedding", "norm"], feed))

    @staticmethod
    def precisions(bundle: Bundle, options: Options) -> Sequence[str]:
        """Those of the bundle's graphs."""
        _providers(options.device)
        return list(bundle.graphs)

    @staticmethod
    def facts() -> dict[str, Any]:
        """Its version and its providers."""
        return {"version": onnxruntime.__version__, "providers": onnxruntime.get_available_providers()}


def _session(graph: Path, device: Device, threads: int) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.enable_mem_pattern = False  # plans are kept per shape, and here every batch has its own
    session = onnxruntime.InferenceSession(str(graph), settings, providers=_providers(device))
    if device == "cuda" and session.get_providers()[0] != CUDA:
        raise RuntimeUnavailable(
            "CUDA was asked for, but ONNX Runtime could not start on it (driver, CUDA or cuDNN missing)"
        )
    return session


def _providers(device: Device) -> list[str]:
    present = CUDA in onnxruntime.get_available_providers()
    if device == "cuda" and not present:
        raise RuntimeUnavailable("CUDA was asked for, but this ONNX Runtime has none: install the `gpu` extra")
    return [CUDA, CPU] if present and device != "cpu" else [CPU]
