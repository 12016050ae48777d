"""OpenVINO on a CPU: the bundle's float32 graph, with matrix products in float32 or, on some CPUs, bfloat16."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np

from models.bundle.bundle import FP32, Bundle
from models.errors import first_line
from models.runtimes.base import CPU_BATCH_TOKENS, Embedded, Floats, Ids, Options, RuntimeUnavailable
from models.runtimes.onnxruntime import OUTPUTS, TOKEN_OUTPUT
from models.runtimes.unpadding import UNPAD, gather_indices, simplify, unpadded

log = logging.getLogger(__name__)

COMPILERS = ThreadPoolExecutor(thread_name_prefix="compile")
"""Threads that compile graphs."""
HINTS = {FP32: "f32", "bf16": "bf16"}
"""OpenVINO's names for precisions."""
LENGTH_STEP = 16
"""Sequences are padded to a multiple of this number of tokens.

Padding limits the number of shapes, because each new shape costs OpenVINO a few milliseconds (ADR 0012).
"""


class OpenVino:
    """A graph that OpenVINO compiles for concurrent batches, and separately for a single batch on all threads."""

    name: ClassVar = "openvino"
    device = "cpu"
    batch_tokens = CPU_BATCH_TOKENS
    length_step = LENGTH_STEP

    def __init__(self, bundle: Bundle, precision: str, options: Options) -> None:
        offered = self.precisions(bundle, options)
        if precision not in offered:
            raise RuntimeUnavailable(
                f"openvino does not support {precision} on this machine; available: {', '.join(offered)}"
            )
        self.precision = precision
        self._longest = bundle.manifest.max_length
        self.streams = options.cpu_streams
        self._threads = options.cpu_threads
        self._graph = _core().read_model(bundle.onnx)
        widths = {name: output.partial_shape[-1] for output in self._graph.outputs for name in output.names}
        self.token_dim = widths[TOKEN_OUTPUT].get_length() if TOKEN_OUTPUT in widths else None
        simplify(self._graph)
        if precision != FP32:
            halve(self._graph)
        without_padding = unpadded(self._graph)
        self._unpads = without_padding is not None
        """True if most operators in the graph of `_concurrent` skip padding (see `unpadded`)."""
        self._lock = threading.Lock()
        self._compiled: Future[SimpleQueue[Any]] | None = None
        """Inference requests for batches without padding, after the compilation. See `_without_gathers`."""
        concurrent = COMPILERS.submit(self._requests, without_padding or self._graph, self.streams)
        self._long_lived = options.long_lived
        if self._long_lived and self.streams > 1:
            self._alone = self._requests(self._graph, 1)
        self._concurrent = concurrent.result()

    def run(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Embedded:
        return Embedded(*self._outputs(OUTPUTS, ids, mask, alone=alone))

    def run_tokens(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Floats:
        (vectors,) = self._outputs([TOKEN_OUTPUT], ids, mask, alone=alone)
        return vectors[:, : ids.shape[1]]

    def _outputs(self, names: Sequence[str], ids: Ids, mask: Ids, *, alone: bool) -> list[Floats]:
        """Run the graph, and return copies of the outputs. OpenVINO overwrites the original outputs in the next run."""
        wider = padded(mask, self._longest)
        feed: dict[str, Any] = {"input_ids": padded(ids, self._longest), "attention_mask": wider}
        requests = self._alone if alone else self._concurrent
        if self._unpads and not alone:
            indices = gather_indices(wider)
            if len(indices[UNPAD]) >= wider.size and (plain := self._without_gathers()):
                requests = plain
            else:
                feed |= indices
        request = requests.get()
        try:
            results = request.infer(feed, share_inputs=True, share_outputs=True)
            return [np.array(results[name]) for name in names]
        finally:
            requests.put(request)

    def _without_gathers(self) -> SimpleQueue[Any] | None:
        """Return the inference requests of a second graph, which is only for batches without padding.

        For such batches, this graph computes the same bits as the graph of `_concurrent`. It is a little faster,
        because it does not gather the tokens that are not padding.

        Return None if the second graph is not compiled. Only a long-lived runtime compiles it: the first call of this
        method starts the compilation in the background.
        """
        if not self._long_lived:
            return None
        with self._lock:
            if self._compiled is None:
                self._compiled = COMPILERS.submit(self._requests, self._graph, self.streams)
                self._compiled.add_done_callback(_report)
        ready = self._compiled.done() and self._compiled.exception() is None
        return self._compiled.result() if ready else None

    @cached_property
    def _alone(self) -> SimpleQueue[Any]:
        """Queue with one inference request, which computes one batch on all threads.

        The graph is compiled separately for this queue, which takes 40 MB more memory (ADR 0056).
        """
        return self._requests(self._graph, 1)

    def _requests(self, graph: Any, streams: int) -> SimpleQueue[Any]:
        """Compile a graph for `streams` concurrent batches, and return a queue with an inference request per stream."""
        settings = {
            "INFERENCE_PRECISION_HINT": HINTS[self.precision],
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": self._threads,
            "ENABLE_CPU_PINNING": False,  # Pinning would put two processes on the same CPUs.
        }
        compiled = _core().compile_model(graph, "CPU", settings)
        requests: SimpleQueue[Any] = SimpleQueue()
        for _ in range(streams):
            requests.put(compiled.create_infer_request())
        return requests

    @staticmethod
    def precisions(bundle: Bundle, options: Options) -> Sequence[str]:  # noqa: ARG004 - any float32 graph will do
        """Return float32, and bfloat16 if OpenVINO reports that the CPU supports it natively."""
        if options.device == "cuda":
            raise RuntimeUnavailable("CUDA was requested, but openvino runs only on CPUs")
        return [FP32, "bf16"] if "BF16" in capabilities() else [FP32]

    @staticmethod
    def facts() -> dict[str, Any]:
        return {"version": _openvino().__version__.split("-")[0], "capabilities": capabilities()}


def _report(compiled: Future[Any]) -> None:
    if error := compiled.exception():
        log.warning(
            "OpenVINO can't compile a graph for batches without padding, so they run slower: %s", first_line(error)
        )


def halve(graph: Any) -> None:
    """Store weights in float16, as OpenVINO's own converter does.

    This saves memory, because OpenVINO keeps the original graph beside the compiled graph. Only graphs that compute in
    bfloat16 are changed. Their accuracy does not suffer, because bfloat16 has even fewer digits than float16. If
    float16 can't represent the weights, the check of golden vectors fails.
    """
    from openvino._offline_transformations import compress_model_transformation

    compress_model_transformation(graph)


def padded(batch: Ids, longest: int) -> Ids:
    """Pad (N, L) with zeros on the right. The new length is a multiple of `LENGTH_STEP`, but at most `longest`."""
    rows, length = batch.shape
    wider = np.zeros((rows, length + min(-length % LENGTH_STEP, max(longest - length, 0))), batch.dtype)
    wider[:, :length] = batch
    return wider


def capabilities() -> list[str]:
    """Return the number types that OpenVINO computes natively on this CPU, sorted.

    `BF16` means AVX-512 or AMX bfloat16.

    Raises:
        RuntimeUnavailable: OpenVINO is not installed, or broken.
    """
    try:
        return sorted(_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    except RuntimeError as error:
        raise RuntimeUnavailable(f"openvino does not work here: {first_line(error)}") from error


@cache
def _core() -> Any:
    """Return the process's only `Core` of OpenVINO. It is never deleted, because deleting cores can kill the process.

    AMX needs a larger signal stack. When a thread creates a core, the core's CPU plugin replaces the thread's signal
    stack by a larger one. When the core is deleted, the plugin frees this stack and restores the stack that it
    replaced. A second core replaces the stack of the first core. If the first core is deleted before the second core,
    the plugin finally restores a freed stack, and the next signal kills the process.

    OpenVINO also creates a table of types when it is first used. Two threads that use the table for the first time
    together would deadlock. This function therefore uses the table before it creates the core.
    """
    openvino = _openvino()
    openvino.Type.f32.to_dtype()
    return openvino.Core()


def _openvino() -> Any:
    # OpenVINO would use the package openvino_telemetry, if it is installed, to report every import to its makers.
    # Without this package, OpenVINO uses a stub.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise RuntimeUnavailable(f"openvino can't be imported ({error}): install the `cpu` extra (x86-64)") from error
    return openvino
