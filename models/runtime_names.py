"""Names of runtimes and devices, for options whose help must not load the runtimes."""

from __future__ import annotations

from typing import Literal

RUNTIME_NAMES = ("onnxruntime", "openvino", "tensorrt")
"""Keys of `models.runtimes.RUNTIMES`."""
Device = Literal["auto", "cpu", "cuda"]
