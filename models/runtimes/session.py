"""An ONNX Runtime session on a CPU or a GPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from models.runtimes.base import Embedded, Ids

log = logging.getLogger(__name__)

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OUTPUTS = ("sentence_embedding", "norm")

Provider = str | tuple[str, dict[str, str]]


class Session:
    """The graph on the first of `providers` that starts. Inputs and outputs are bound to the device's memory."""

    def __init__(self, graph: Path, providers: Sequence[Provider], threads: int) -> None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        settings.enable_mem_pattern = False  # plans are kept per shape, and every batch has its own
        if providers[0] != CPU:
            _load_cuda()
        self._session = onnxruntime.InferenceSession(str(graph), settings, providers=list(providers))
        self._inputs = {node.name for node in self._session.get_inputs()}
        self.provider: str = self._session.get_providers()[0]
        self.device = "cpu" if self.provider == CPU else "cuda"

    def run(self, ids: Ids, mask: Ids) -> Embedded:
        """Run the graph. Each input is copied to the device once, and each output is copied back once."""
        feed = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros_like(ids)
        binding = self._session.io_binding()
        for name, batch in feed.items():
            binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(batch, self.device, 0))
        for name in OUTPUTS:
            binding.bind_output(name, self.device, 0)
        self._session.run_with_iobinding(binding)
        return Embedded(*binding.copy_outputs_to_cpu())


@cache
def _load_cuda() -> None:
    """Load CUDA's libraries from Python wheels, if there are any. System libraries are found without this."""
    said = StringIO()
    with redirect_stdout(said):
        onnxruntime.preload_dlls()
    for line in filter(None, said.getvalue().splitlines()):
        log.warning("%s", line)
