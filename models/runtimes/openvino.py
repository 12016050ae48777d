"""OpenVINO on a CPU: the bundle's float32 graph, its matrix products in float32 or, where the CPU has it, bfloat16."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np

from models.bundle import FP32, Bundle
from models.errors import first_line
from models.runtimes.base import CPU_BATCH_TOKENS, Embedded, Ids, Options, RuntimeUnavailable

HINTS = {FP32: "f32", "bf16": "bf16"}
"""Our names of precisions in OpenVINO's words."""
LENGTH_STEP = 16
"""Batches are padded to a multiple of so many tokens: each new shape costs OpenVINO a few milliseconds (ADR 0012)."""


class OpenVino:
    """The graph compiled for batches side by side, and, where that is another thing, for one batch on all threads."""

    name: ClassVar = "openvino"
    device = "cpu"
    batch_tokens = CPU_BATCH_TOKENS
    length_step = LENGTH_STEP

    def __init__(self, bundle: Bundle, precision: str, options: Options) -> None:
        offered = self.precisions(bundle, options)
        if precision not in offered:
            raise RuntimeUnavailable(f"no {precision} on openvino here; there is {', '.join(offered)}")
        self.precision = precision
        self._longest = bundle.manifest.max_length
        self.streams = options.cpu_streams
        graph = _core().read_model(bundle.onnx)
        if precision != FP32:
            halve(graph)
        self._side_by_side = self._requests(graph, self.streams, options.cpu_threads)
        self._whole = self._requests(graph, 1, options.cpu_threads) if self.streams > 1 else self._side_by_side

    def run(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Embedded:
        """One run of the graph; what comes out is copied, for OpenVINO writes the next one over it."""
        feed = {"input_ids": padded(ids, self._longest), "attention_mask": padded(mask, self._longest)}
        requests = self._whole if alone else self._side_by_side
        request = requests.get()
        try:
            results = request.infer(feed, share_inputs=True, share_outputs=False)
        finally:
            requests.put(request)
        return Embedded(results["sentence_embedding"], results["norm"])

    def _requests(self, graph: Any, streams: int, threads: int) -> SimpleQueue[Any]:
        """One for each stream of a model that shares `threads` among `streams`."""
        settings = {
            "INFERENCE_PRECISION_HINT": HINTS[self.precision],
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,  # two processes would be pinned to the same CPUs
        }
        compiled = _core().compile_model(graph, "CPU", settings)
        requests: SimpleQueue[Any] = SimpleQueue()
        for _ in range(streams):
            requests.put(compiled.create_infer_request())
        return requests

    @staticmethod
    def precisions(bundle: Bundle, options: Options) -> Sequence[str]:  # noqa: ARG004 - any float32 graph will do
        """float32, and bfloat16 where OpenVINO says that this CPU multiplies it."""
        if options.device == "cuda":
            raise RuntimeUnavailable("CUDA was asked for: openvino runs on CPUs only")
        return [FP32, "bf16"] if "BF16" in capabilities() else [FP32]

    @staticmethod
    def facts() -> dict[str, Any]:
        """Its version and what it finds in the CPU."""
        return {"version": _openvino().__version__.split("-")[0], "capabilities": capabilities()}


def halve(graph: Any) -> None:
    """Keep weights in float16, as OpenVINO's own converter does: for products in bfloat16, which has fewer digits.

    OpenVINO holds the graph that it was given beside what it made of it, for as long as it serves. Of weights that
    float16 can't hold, the bundle's golden vectors would tell.
    """
    from openvino._offline_transformations import compress_model_transformation

    compress_model_transformation(graph)


def padded(batch: Ids, longest: int) -> Ids:
    """(N, L) with zeros on the right up to a multiple of `LENGTH_STEP`, not beyond `longest`: positions end there."""
    rows, length = batch.shape
    wider = np.zeros((rows, length + min(-length % LENGTH_STEP, max(longest - length, 0))), batch.dtype)
    wider[:, :length] = batch
    return wider


def capabilities() -> list[str]:
    """What OpenVINO computes natively on this CPU, sorted: `BF16` stands for AVX-512 or AMX bfloat16.

    Raises:
        RuntimeUnavailable: OpenVINO is not installed, or broken.
    """
    try:
        return sorted(_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    except RuntimeError as error:
        raise RuntimeUnavailable(f"openvino does not work here: {first_line(error)}") from error


@cache
def _core() -> Any:
    """One for the process, for as long as it lives.

    Its CPU plugin gives the thread that makes it a larger stack for signals, as AMX needs, and takes it back at its
    end. Of two that overlap, the last puts back a stack that the first has freed, and the next signal ends the process.
    Its table of types is made at the first question for one; two threads that ask first would wait for each other.
    """
    openvino = _openvino()
    openvino.Type.f32.to_dtype()
    return openvino.Core()


def _openvino() -> Any:
    # The package reports every import to its makers where that module is there; without it, it has a stub of its own.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise RuntimeUnavailable(f"openvino can't be imported ({error}): install the `cpu` extra (x86-64)") from error
    return openvino
