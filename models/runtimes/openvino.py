"""OpenVINO on a CPU: the bundle's float32 graph, its matrix products in float32 or, where the CPU has it, bfloat16."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

from models.bundle import FP32, Bundle
from models.runtimes.base import Embedded, Ids, Options, RuntimeUnavailable, first_line

HINTS = {FP32: "f32", "bf16": "bf16"}
"""Our names of precisions in OpenVINO's words."""
LENGTH_STEP = 16
"""Batches are padded to a multiple of so many tokens: each new shape costs OpenVINO a few milliseconds (ADR 0012)."""


class OpenVino:
    """A compiled model and one request of it: a single stream, all threads on one batch."""

    name: ClassVar = "openvino"
    device = "cpu"

    def __init__(self, bundle: Bundle, precision: str, options: Options) -> None:
        offered = self.precisions(bundle, options)
        if precision not in offered:
            raise RuntimeUnavailable(f"no {precision} on openvino here; there is {', '.join(offered)}")
        self.precision = precision
        self._longest = bundle.manifest.max_length
        settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": HINTS[precision],
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # two processes would be pinned to the same CPUs
        }
        if options.threads:
            settings["INFERENCE_NUM_THREADS"] = options.threads
        core = _core()
        self._request = core.compile_model(core.read_model(bundle.onnx), "CPU", settings).create_infer_request()

    def run(self, ids: Ids, mask: Ids) -> Embedded:
        """One run of the graph; what comes out is copied, for OpenVINO writes the next one over it."""
        feed = {"input_ids": padded(ids, self._longest), "attention_mask": padded(mask, self._longest)}
        results = self._request.infer(feed, share_inputs=True, share_outputs=False)
        return Embedded(results["sentence_embedding"], results["norm"])

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


def padded(batch: Ids, longest: int) -> Ids:
    """(N, L) with zeros on the right up to a multiple of `LENGTH_STEP`, not beyond `longest`: positions end there."""
    missing = min(-batch.shape[1] % LENGTH_STEP, max(longest - batch.shape[1], 0))
    return np.pad(batch, ((0, 0), (0, missing)))


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
    """
    return _openvino().Core()


def _openvino() -> Any:
    # The package reports every import to its makers where that module is there; without it, it has a stub of its own.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise RuntimeUnavailable(f"openvino can't be imported ({error}): install the `cpu` extra (x86-64)") from error
    return openvino
