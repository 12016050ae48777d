"""Attention for training. CPUs use eager attention in the values' type, other devices use torch's fused kernel."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.passes.dropout import drop

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SWIFT = "isosphere_swift"
"""Name of this attention among transformers' attention implementations."""
FAMILIES = frozenset(("bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"))
"""Model types that this attention supports. Their scores have no cap and no bias except the mask, and each head has its
own keys and values."""
PACKED = FAMILIES - {"modernbert"}
"""Model types whose sentences may be packed in one sequence.

These models take position ids, and attention is the same in every layer.
"""


class Packed(NamedTuple):
    """The layout of sentences packed in one sequence.

    The sequence is a series of parts. Sentences of a part have the same padded length. Each sentence attends only to
    itself.
    """

    masks: Sequence[Tensor]
    """Additive masks (n, 1, 1, L), one for each part."""
    margins: tuple[int, int] = (0, 0)
    """Padding tokens before and after the parts. Their attended values are 0."""
    whole: int = 0
    """Number of parts without dropout of attention weights. They are the last parts."""

    def split(self, tokens: Tensor) -> Sequence[Tensor]:
        """Split (T, ...) into the (n L, ...) of each part."""
        before, after = self.margins
        return torch.split(tokens, [before, *(mask.size(0) * mask.size(-1) for mask in self.masks), after])[1:-1]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed: Packed | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attended values (N, L, heads, d) and weights (N, heads, L, L) of query, key, value (N, heads, L, d).

    For `packed` sentences N is 1, L is the total number of tokens T, and no weights are returned. The fused kernel
    returns no weights either.

    Under bf16 autocast the scores stay bf16, and the softmax computes in float32 internally. Transformers' eager
    attention would write the scores in float32 and convert them back. In evaluation the architecture's own eager
    attention is used, except under autocast and for packed sentences.
    """
    if packed is None and not (module.training or torch.is_autocast_enabled(value.device.type)):
        eager = sys.modules[type(module).__module__].eager_attention_forward
        result: tuple[Tensor, Tensor] = eager(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **more
        )
        return result
    with torch.autocast(value.device.type, enabled=False):
        query, key = query.to(value.dtype), key.to(value.dtype)
        scaling, rate = scaling or query.size(-1) ** -0.5, dropout if module.training else 0.0
        if packed is None:
            return _attend((query, key, value), attention_mask, scaling, rate)
        return _attend_packed((query, key, value), packed, scaling, rate), None


def _attend_packed(projected: Sequence[Tensor], packed: Packed, scaling: float, rate: float) -> Tensor:
    """Compute attended values (1, T, heads, d) of query, key and value, each (1, heads, T, d)."""
    rates = [rate] * (len(packed.masks) - packed.whole) + [0.0] * packed.whole
    parts = zip(*(_parts(each, packed) for each in projected), strict=True)
    attended = [
        _attend(part, mask, scaling, each)[0].flatten(0, 1)
        for part, mask, each in zip(parts, packed.masks, rates, strict=True)
    ]
    before, after = (attended[0].new_zeros(margin, *attended[0].shape[1:]) for margin in packed.margins)
    return torch.cat([before, *attended, after])[None]


def _attend(
    projected: Sequence[Tensor], mask: Tensor | None, scaling: float, rate: float
) -> tuple[Tensor, Tensor | None]:
    """Compute attended values (N, L, heads, d) of query, key and value, and on CPUs the weights."""
    query, key, value = projected
    if mask is not None:  # Keep all scores finite: the softmax of a row of -inf is NaN.
        least = max(torch.finfo(each.dtype).min for each in (mask, value))
        mask = mask.clamp(min=least / 2).to(value.dtype)
    if value.device.type != "cpu":
        attended = F.scaled_dot_product_attention(query, key, value, mask, rate, scale=scaling)
        return attended.transpose(1, 2).contiguous(), None
    scores = query @ key.transpose(2, 3) * scaling
    if mask is not None:
        scores = scores + mask
    weights = drop(scores.softmax(dim=-1), rate)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _parts(projected: Tensor, packed: Packed) -> list[Tensor]:
    """Split (1, heads, T, d) into the (n, heads, L, d) of each part."""
    tokens = packed.split(projected.squeeze(0).transpose(0, 1))
    return [
        each.view(mask.size(0), mask.size(-1), *each.shape[1:]).transpose(1, 2)
        for each, mask in zip(tokens, packed.masks, strict=True)
    ]


def use(backbone: PreTrainedModel) -> None:
    """Make `backbone`, one of `FAMILIES`, use `attention` from now on."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(SWIFT, attention)
    AttentionMaskInterface.register(SWIFT, mask)
    backbone.set_attn_implementation(SWIFT)


def packs(backbone: PreTrainedModel) -> bool:
    """Return whether sentences can be packed in one sequence.

    Any other attention would let each sentence attend to all sentences.
    """
    return backbone.config._attn_implementation == SWIFT and backbone.config.model_type in PACKED


def mask(*places: Any, **named: Any) -> Tensor | None:
    """Build the additive mask of eager attention. It is built even without padding: a check would wait for the device.

    Without an attention mask the result is None, because packed sentences have their own masks.
    """
    if named["attention_mask"] is None:
        return None
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    built: Tensor = ALL_MASK_ATTENTION_FUNCTIONS["eager"](*places, **{**named, "allow_is_bidirectional_skip": False})
    return built
