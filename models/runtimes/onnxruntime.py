"""ONNX Runtime on a CPU or a CUDA device: the float32 graph, and whatever graphs of other precisions a bundle has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime

from models.bundle import Bundle, BundleError
from models.runtimes.base import Device, Embedded, Ids, Options, RuntimeUnavailable

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


class OnnxRuntime:
    """An ONNX session."""

    name: ClassVar = "onnxruntime"

    def __init__(self, bundle: Bundle, precision: str, options: Options) -> None:
        if precision not in bundle.graphs:
            raise BundleError(f"{bundle.folder}: no {precision} graph; there is {', '.join(bundle.graphs)}")
        self.precision = precision
        self._session = _session(bundle.graphs[precision], options)
        self._inputs = {node.name for node in self._session.get_inputs()}
        self.device = "cuda" if self._session.get_providers()[0] == CUDA else "cpu"

    def run(self, ids: Ids, mask: Ids) -> Embedded:
        """One run of the graph."""
        feed = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros_like(ids)
        return Embedded(*self._session.run(["sentence_embedding", "norm"], feed))

    @staticmethod
    def precisions(bundle: Bundle, options: Options) -> Sequence[str]:
        """Those of the bundle's graphs."""
        _providers(options.device)
        return list(bundle.graphs)

    @staticmethod
    def facts() -> dict[str, Any]:
        """Its version and its providers."""
        return {"version": onnxruntime.__version__, "providers": onnxruntime.get_available_providers()}


def _session(graph: Path, options: Options) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads or 0
    settings.inter_op_num_threads = 1
    settings.enable_mem_pattern = False  # plans are kept per shape, and here every batch has its own
    session = onnxruntime.InferenceSession(str(graph), settings, providers=_providers(options.device))
    if options.device == "cuda" and session.get_providers()[0] != CUDA:
        raise RuntimeUnavailable(
            "CUDA was asked for, but ONNX Runtime could not start on it (driver, CUDA or cuDNN missing)"
        )
    return session


def _providers(device: Device) -> list[str]:
    present = CUDA in onnxruntime.get_available_providers()
    if device == "cuda" and not present:
        raise RuntimeUnavailable("CUDA was asked for, but this ONNX Runtime has none: install the `gpu` extra")
    return [CUDA, CPU] if present and device != "cpu" else [CPU]
