"""TensorRT through ONNX Runtime: the bundle's float32 graph is compiled for this GPU, in float32 or float16."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from ctypes import CDLL
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime

from models.bundle.bundle import FP32, ONNX, Bundle
from models.runtimes.base import Embedded, Floats, Ids, Options, RuntimeUnavailable, cache_folder
from models.runtimes.onnxruntime import CUDA_BATCH_TOKENS, CUDA_PROVIDERS, TENSORRT, Session, warm_up

log = logging.getLogger(__name__)

LIBRARY = "libnvinfer.so.10"
"""Name of TensorRT's library, which ONNX Runtime's provider needs but ONNX Runtime's package does not contain."""
ROWS = 256
"""Maximum number of texts in a run. The compiled engine has memory for this many texts of maximum length."""
USUAL_LENGTH = 64
INPUTS = ("input_ids", "attention_mask")


class TensorRt:
    """A TensorRT engine for all shapes up to `ROWS` texts of maximum length. The engine is compiled once and cached."""

    name: ClassVar = "tensorrt"
    device = "cuda"
    streams = 1
    batch_tokens = CUDA_BATCH_TOKENS
    length_step = 1

    def __init__(self, bundle: Bundle, precision: str, options: Options) -> None:
        offered = self.precisions(bundle, options)
        if precision not in offered:
            raise RuntimeUnavailable(f"tensorrt does not support {precision}; available: {', '.join(offered)}")
        self.precision = precision
        providers = [(TENSORRT, settings(bundle, precision)), *CUDA_PROVIDERS]
        self._session = Session(bundle.onnx, providers, options.cpu_threads)
        if self._session.provider != TENSORRT:
            raise RuntimeUnavailable(
                "ONNX Runtime could not start TensorRT: NVIDIA's driver, CUDA or cuDNN is missing, "
                "or the device has no memory left"
            )
        warm_up(self.run, bundle.manifest.max_length)

    def run(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Embedded:  # noqa: ARG002 - there is one stream
        """Run the engine on the batch, in parts of up to `ROWS` texts."""
        parts = [self._session.run(ids[at : at + ROWS], mask[at : at + ROWS]) for at in range(0, len(ids), ROWS)]
        return Embedded(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def token_dim(self) -> int | None:
        return self._session.token_dim

    def run_tokens(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Floats:  # noqa: ARG002 - as in `run`
        return np.concatenate(
            [self._session.run_tokens(ids[at : at + ROWS], mask[at : at + ROWS]) for at in range(0, len(ids), ROWS)]
        )

    @staticmethod
    def precisions(bundle: Bundle, options: Options) -> Sequence[str]:  # noqa: ARG004 - any float32 graph will do
        if options.device == "cpu":
            raise RuntimeUnavailable("the CPU was requested, but tensorrt runs only on CUDA")
        _require()
        return [FP32, "fp16"]

    @staticmethod
    def facts() -> dict[str, Any]:
        _require()
        return {"version": onnxruntime.__version__, "library": LIBRARY}


def settings(bundle: Bundle, precision: str) -> dict[str, str]:
    """Return options of ONNX Runtime's TensorRT provider: shapes to compile for, precision, and cache of engines."""
    longest = bundle.manifest.max_length
    chosen = {
        "trt_fp16_enable": str(int(precision == "fp16")),
        "trt_layer_norm_fp32_fallback": "1",
        "trt_profile_min_shapes": _shapes(1, 1),
        "trt_profile_opt_shapes": _shapes(ROWS, min(USUAL_LENGTH, longest)),
        "trt_profile_max_shapes": _shapes(ROWS, longest),
    }
    if not (kept := _kept(bundle.manifest.files[ONNX])):
        return chosen
    return chosen | {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(kept),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(kept),
    }


def _kept(graph: str) -> Path | None:
    """Create and return the cache folder for the engines of a graph. If this is not possible, warn and return None.

    `graph` is the SHA-256 of the graph. It becomes the name of the folder, because ONNX Runtime's own file names do
    not depend on the weights.
    """
    if not (folder := cache_folder()):
        log.warning(
            "no home directory and no XDG_CACHE_HOME, so compiled engines are not cached; the next start compiles again"
        )
        return None
    kept = folder / "tensorrt" / graph
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning("%s: not written (%s); the next start compiles again", kept, error.strerror)
        return None
    return kept


def _shapes(rows: int, length: int) -> str:
    return ",".join(f"{name}:{rows}x{length}" for name in INPUTS)


def _require() -> None:
    if TENSORRT not in onnxruntime.get_available_providers():
        raise RuntimeUnavailable("this ONNX Runtime has no TensorRT: install the `gpu` extra")
    try:
        CDLL(LIBRARY)
    except OSError as error:
        raise RuntimeUnavailable(
            f"TensorRT can't be loaded ({error}): `pip install 'tensorrt-cu13<11'`, "
            "and name its folder tensorrt_libs in LD_LIBRARY_PATH"
        ) from error
