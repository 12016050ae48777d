"""Attention for training: on a CPU transformers' eager one in the type of the values, elsewhere torch's fused one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.passes.dropout import dropout as drop

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SWIFT = "isosphere_swift"
"""Its name among transformers' attention implementations."""
FAMILIES = frozenset(("bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"))
"""The model types whose attention it is: no bias but the mask, no shared heads, no cap on the scores."""
PACKED = FAMILIES - {"modernbert"}
"""Those of them whose sentences may lie in one sequence: they take positions, and attend the same in every layer."""


class Packed(NamedTuple):
    """How sentences lie in a single sequence: in parts one after the other, each sentence attending to itself."""

    masks: Sequence[Tensor]
    """Additive, (n, 1, 1, L), one for each part."""
    margins: tuple[int, int] = (0, 0)
    """Tokens before and after the parts, which belong to no sentence: their attended values are 0."""
    whole: int = 0
    """The parts, the last ones, whose weights no dropout touches."""

    def split(self, tokens: Tensor) -> Sequence[Tensor]:
        """(T, ...) cut into the (n L, ...) of each part."""
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
    """Attended values (N, L, heads, d) and the weights (N, heads, L, L) of query, key and value, each (N, heads, L, d).

    Where sentences are `packed` N is 1, L is T, the tokens of them all, and there are no weights.

    Under bf16 autocast the scores stay bf16, which the softmax widens inside; the eager one writes them out in float32
    first, only to narrow them again. The fused one keeps no weights and gives none. In evaluation, but
    for views under autocast and packed ones, it is the architecture's own eager attention.
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
    """Attended values (1, T, heads, d) of query, key and value, each (1, heads, T, d)."""
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
    """Attended values (N, L, heads, d) of query, key and value, and the weights where they are kept."""
    query, key, value = projected
    if mask is not None:  # nothing may become infinite: a row of -inf has no softmax
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
    """(1, heads, T, d) cut into the (n, heads, L, d) of each part."""
    tokens = packed.split(projected.squeeze(0).transpose(0, 1))
    return [
        each.view(mask.size(0), mask.size(-1), *each.shape[1:]).transpose(1, 2)
        for each, mask in zip(tokens, packed.masks, strict=True)
    ]


def use(backbone: PreTrainedModel) -> None:
    """From here on `backbone`, one of `FAMILIES`, attends by `attention`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(SWIFT, attention)
    AttentionMaskInterface.register(SWIFT, mask)
    backbone.set_attn_implementation(SWIFT)


def packs(backbone: PreTrainedModel) -> bool:
    """Whether sentences may lie in one sequence: other attentions would attend from each to all of them."""
    return backbone.config._attn_implementation == SWIFT and backbone.config.model_type in PACKED


def mask(*places: Any, **named: Any) -> Tensor | None:
    """The eager attention's additive mask, built even where there is no padding: to look is to wait for the device.

    None where no padding is named: packed sentences bring their own.
    """
    if named["attention_mask"] is None:
        return None
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    built: Tensor = ALL_MASK_ATTENTION_FUNCTIONS["eager"](*places, **{**named, "allow_is_bidirectional_skip": False})
    return built
