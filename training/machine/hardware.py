"""The choice of device and precision."""

from __future__ import annotations

from typing import Literal

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

    `auto` is bfloat16 if the hardware supports it. On a CPU with AMX or AVX512-BF16, a training step of MiniLM then
    takes little more than half the time. On other CPUs, bfloat16 is emulated and slower than float32.
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
