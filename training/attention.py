"""Attention for training: on a CPU transformers' eager one in the type of the values, elsewhere torch's fused one."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from training.dropout import dropout as drop

SWIFT = "isosphere_swift"
"""Its name among transformers' attention implementations."""
FAMILIES = frozenset(("bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"))
"""The model types whose attention it is: no bias but the mask, no shared heads, no cap on the scores."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attended values (N, L, heads, d) and the weights (N, heads, L, L) of query, key and value, each (N, heads, L, d).

    Under bf16 autocast the scores stay bf16, which the softmax widens inside; the eager one writes them out in float32
    first, only to narrow them again. The fused one keeps no weights and gives none. In evaluation, but
    for views under autocast, it is the architecture's own eager attention.
    """
    if not (module.training or torch.is_autocast_enabled(value.device.type)):
        eager = sys.modules[type(module).__module__].eager_attention_forward
        result: tuple[Tensor, Tensor] = eager(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **more
        )
        return result
    with torch.autocast(value.device.type, enabled=False):
        narrow, scaling, rate = value.dtype, scaling or query.size(-1) ** -0.5, dropout if module.training else 0.0
        query, key = query.to(narrow), key.to(narrow)
        if attention_mask is not None:  # nothing may become infinite: a row of -inf has no softmax
            attention_mask = attention_mask.clamp(min=torch.finfo(narrow).min / 2).to(narrow)
        if value.device.type != "cpu":
            attended = F.scaled_dot_product_attention(query, key, value, attention_mask, rate, scale=scaling)
            return attended.transpose(1, 2).contiguous(), None
        scores = query @ key.transpose(2, 3) * scaling
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = drop(scores.softmax(dim=-1), rate)
        return (weights @ value).transpose(1, 2).contiguous(), weights


def mask(*places: Any, **named: Any) -> Tensor:
    """The eager attention's additive mask, built even where there is no padding: to look is to wait for the device."""
    built: Tensor = ALL_MASK_ATTENTION_FUNCTIONS["eager"](*places, **{**named, "allow_is_bidirectional_skip": False})
    return built


AttentionInterface.register(SWIFT, attention)
AttentionMaskInterface.register(SWIFT, mask)
