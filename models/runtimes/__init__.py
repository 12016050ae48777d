"""Registry of the runtimes, and detection of those that work on this machine. No runtime loads torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from models.bundle.bundle import FP32, Bundle
from models.runtimes.base import Options, Runtime, RuntimeUnavailable
from models.runtimes.onnxruntime import OnnxRuntime
from models.runtimes.openvino import OpenVino
from models.runtimes.tensorrt import TensorRt

RUNTIMES: dict[str, type[Runtime]] = {
    OnnxRuntime.name: OnnxRuntime,
    OpenVino.name: OpenVino,
    TensorRt.name: TensorRt,
}


class Pair(NamedTuple):
    """A runtime and a precision."""

    runtime: str
    precision: str

    def __str__(self) -> str:
        return f"{self.runtime} {self.precision}"


REFERENCE = Pair(OnnxRuntime.name, FP32)
"""The reference for comparisons with all other pairs. Export has verified it against torch."""


def available(bundle: Bundle, options: Options, *, runtimes: Mapping[str, type[Runtime]] = RUNTIMES) -> Sequence[Pair]:
    """Return the pairs of runtime and precision that can run `bundle` on this machine, in the order of `runtimes`.

    Raises:
        RuntimeUnavailable: no runtime works.
    """
    pairs: list[Pair] = []
    refusals: list[str] = []
    for name, runtime in runtimes.items():
        try:
            pairs += [Pair(name, precision) for precision in runtime.precisions(bundle, options)]
        except RuntimeUnavailable as refusal:
            refusals.append(str(refusal))
    if not pairs:
        raise RuntimeUnavailable("; ".join(refusals))
    return pairs
