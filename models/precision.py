"""Numeric precision."""

from __future__ import annotations

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """Convert `x` to float32 if it is narrower."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
