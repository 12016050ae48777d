"""What to compute on, and in which precision."""

from __future__ import annotations

from typing import Literal

import torch

from models.errors import Refused

Precision = Literal["auto", "fp32", "fp16", "bf16"]


class HardwareError(Refused):
    """The device or precision asked for is not to be had."""


def pick_device(name: str) -> torch.device:
    """The device called `name`; for `auto` CUDA's first if there is one, else the CPU.

    Raises:
        HardwareError: torch knows no such device, or this machine has none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()  # `meta` has tensors, but no numbers in them
    except (RuntimeError, AssertionError) as error:
        raise HardwareError(f"device {name!r}: {str(error).splitlines()[0]}") from error
    return device


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    """The type of the encoder's matrix products: bfloat16, float16, or None for float32.

    `auto` takes bfloat16 where the hardware multiplies it: on a CPU with AMX or AVX512-BF16 a training step of
    MiniLM then takes little more than half the time; without either, bfloat16 is emulated and slower than float32.
    """
    if precision == "auto":
        return torch.bfloat16 if _multiplies_bf16(device) else None
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def named(dtype: torch.dtype | None) -> Precision:
    """What a precision is called: the other way round."""
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")  # type: ignore[return-value, arg-type]


def _multiplies_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
