"""The choice of device and precision, and the record of a run's environment."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch

from models.errors import Refused

Precision = Literal["auto", "fp32", "fp16", "bf16"]


class HardwareError(Refused):
    """The requested device or precision is not available."""


def pick_device(name: str) -> torch.device:
    """Return the device called `name`.

    `auto` is the first CUDA device if there is one, else the CPU.

    Raises:
        HardwareError: torch knows no such device, or this machine has none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()  # The device `meta` accepts tensors but has no values, so a value is read.
    except (RuntimeError, AssertionError) as error:
        raise HardwareError(f"device {name!r}: {str(error).splitlines()[0]}") from error
    return device


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    """Return the dtype of the encoder's matrix products: bfloat16, float16, or None for float32.

    `auto` is bfloat16 if the hardware supports it. On a CPU with AMX or AVX512-BF16, bfloat16 reduces the time of a
    training step of MiniLM to little more than half. On other CPUs, bfloat16 is emulated and slower than float32.
    """
    if precision == "auto":
        return torch.bfloat16 if _multiplies_bf16(device) else None
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def precision_name(dtype: torch.dtype | None) -> Precision:
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")  # type: ignore[return-value, arg-type]


def _multiplies_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


# Record of a run's environment, for traceability and reproduction.

PACKAGES = ("isosphere", "torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy")


def environment() -> dict[str, Any]:
    """Return versions, hardware, and the git commit of this code (None outside a checkout)."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        **git_state(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state() -> dict[str, str | bool | None]:
    """Return the commit (None outside git), and whether tracked files are modified (False outside git)."""
    return {
        "git_commit": _run_git("rev-parse", "HEAD"),
        "git_modified": bool(_run_git("status", "--porcelain", "--untracked-files=no")),
    }


def _run_git(*command: str) -> str | None:
    folder = Path(__file__).parent
    try:
        done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
