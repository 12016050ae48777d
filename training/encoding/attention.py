"""Fast attention, dropout and embeddings for training.

They compute the same functions as the modules of transformers and torch.

On CPUs, attention is eager and computes in the dtype of its values. On other devices, torch's fused kernel is used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from models.encoder.encoder import Encoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION = "isosphere_swift"
"""Name of `attention` among transformers' attention implementations."""
FAMILIES = frozenset(("bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"))
"""Model types that `attention` supports.

In these models, attention scores have no cap and no bias except the mask, and each head has its own keys and values.
"""
PACKED = FAMILIES - {"modernbert"}
"""Model types whose sentences may be packed in one sequence.

These models take position ids, and attention is the same in every layer.
"""


class PackedLayout(NamedTuple):
    """The layout of sentences packed in one sequence.

    The sequence is a concatenation of parts. All sentences of a part are padded to the same length. Tokens of a
    sentence attend only to tokens of the same sentence.
    """

    masks: Sequence[Tensor]
    """Additive masks (n, 1, 1, L), one for each part."""
    margins: tuple[int, int] = (0, 0)
    """Numbers of padding tokens before and after the parts. The attention output of padding tokens is 0."""
    whole: int = 0
    """Number of parts at the end of the sequence that are computed without dropout of attention weights."""

    def split(self, tokens: Tensor) -> Sequence[Tensor]:
        """Split tokens (T, ...) into the parts of the layout.

        A part of n sentences of L tokens has the shape (n L, ...).
        """
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
    packed: PackedLayout | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attended values (N, L, heads, d) and weights (N, heads, L, L) of query, key, value (N, heads, L, d).

    In evaluation, the architecture's own eager attention is used, except under autocast and for packed sentences. In
    all other cases, `_attend` is used. On devices other than CPUs, `_attend` uses a fused kernel, which returns no
    weights. For `packed` sentences, N is 1, L is the total number of tokens T, and no weights are returned either.

    Under bf16 autocast the scores stay bf16, and the softmax computes in float32 internally. Transformers' eager
    attention would write the scores in float32 and convert them back.
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


def _attend_packed(projected: Sequence[Tensor], packed: PackedLayout, scaling: float, rate: float) -> Tensor:
    """Compute the attention output (1, T, heads, d) of query, key and value, each (1, heads, T, d)."""
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
    """Compute the attention output (N, L, heads, d) of query, key and value.

    On CPUs, also return the attention weights.
    """
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
    weights = fast_dropout(scores.softmax(dim=-1), rate)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _parts(projected: Tensor, packed: PackedLayout) -> list[Tensor]:
    """Split `projected` (1, heads, T, d), which has T tokens, into one tensor for each part of the packed layout.

    The tensor of a part with n sentences of L tokens has the shape (n, heads, L, d).
    """
    tokens = packed.split(projected.squeeze(0).transpose(0, 1))
    return [
        each.view(mask.size(0), mask.size(-1), *each.shape[1:]).transpose(1, 2)
        for each, mask in zip(tokens, packed.masks, strict=True)
    ]


def use_attention(backbone: PreTrainedModel) -> None:
    """Replace the attention of `backbone` by this module's. The backbone's model type must be in `FAMILIES`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, mask)
    backbone.set_attn_implementation(ATTENTION)


def supports_packing(backbone: PreTrainedModel) -> bool:
    """Return whether sentences can be packed in one sequence.

    The backbone must use this module's `attention`, and its model type must be in `PACKED`. With another attention,
    each sentence would attend to all sentences of the sequence.
    """
    return backbone.config._attn_implementation == ATTENTION and backbone.config.model_type in PACKED


def mask(*places: Any, **named: Any) -> Tensor | None:
    """Build the additive mask of eager attention, or return None if the argument `attention_mask` is None.

    The mask is built even without padding, because a check for padding would wait for the device. Packed sentences have
    no `attention_mask`, because their masks are in a `PackedLayout`.
    """
    if named["attention_mask"] is None:
        return None
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    built: Tensor = ALL_MASK_ATTENTION_FUNCTIONS["eager"](*places, **{**named, "allow_is_bidirectional_skip": False})
    return built


# Faster training of a loaded encoder. Weights, their names and the computed function stay the same.


def use_fast_operations(encoder: Encoder) -> Encoder:
    """Make the encoder's attention faster in place, and on the CPU also dropout, residuals and word embeddings.

    In evaluation mode without autocast, the results do not change by a single bit. In training mode, dropout draws
    other random numbers than before.
    """
    if encoder.backbone.config.model_type in FAMILIES:
        use_attention(encoder.backbone)
    if encoder.device.type != "cpu":  # Torch's own modules are fast on other devices.
        return encoder
    if encoder.backbone.config.model_type in FAMILIES:
        encoder.backbone.get_submodule("embeddings").register_forward_hook(_narrow)
    for parent in list(encoder.backbone.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))
    if not torch.distributed.is_initialized():  # Processes exchange dense gradients.
        _look_up_sparsely(encoder)
    return encoder


def _narrow(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
    """Return the embeddings in bf16 under bf16 autocast, so that the residual stream stays bf16 in all layers.

    Norms still compute in float32 internally. Without this hook, torch keeps the stream in float32 and converts it for
    every matrix product.
    """
    device = embedded.device.type
    narrow = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.bfloat16
    return embedded.bfloat16() if narrow else embedded


def _look_up_sparsely(encoder: Encoder) -> None:
    """Keep the gradient of the word embeddings sparse within a backward pass.

    For each forward pass, torch would write a dense gradient of the whole table, nearly all zeros, into new memory.
    Here the sparse gradients of all forward passes are summed first. The sum is then written into a dense buffer. The
    buffer is reused after `zero_grad`, so callers must copy a gradient that they want to keep.
    """
    words = encoder.backbone.get_input_embeddings()
    if not isinstance(words, nn.Embedding) or not words.weight.requires_grad:
        return
    table = torch.empty(0)

    def write_out(weight: Tensor) -> None:
        nonlocal table
        if weight.grad is not None and weight.grad.is_sparse:
            if (table.shape, table.dtype) != (weight.shape, weight.dtype):
                table = torch.empty_like(weight)
            weight.grad = table.zero_().add_(weight.grad)

    words.sparse = True
    words.weight.register_post_accumulate_grad_hook(write_out)  # type: ignore[no-untyped-call]


# Dropout for CPUs with the distribution of torch's dropout, in a sixth of the time.
#
# Torch spends most of the time on drawing one number per element. Source: Srivastava et al., "Dropout" (JMLR 2014),
# inverted as usual: kept elements are scaled, and evaluation is the identity.

BITS = 15
"""Random bits per element. Probabilities are exact to 2^-16."""
INTEGER_TYPES = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


class Dropout(nn.Dropout):
    """A faster replacement for `torch.nn.Dropout` that draws from the same generator, and can exempt some rows."""

    exempt: int | None = None
    """If set to n, dropout leaves the last 1/n of the rows (..., T, D) unchanged. None applies it to all rows."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability p, and divide the kept elements by 1 - p.

        If `exempt` is n, the last 1/n of the rows stay as they are. In evaluation mode, return `x` itself.
        """
        if not self.training:
            return x
        if self.exempt is None:
            return fast_dropout(x, self.p)
        whole = x.size(-2) // self.exempt
        touched, untouched = torch.split(x, [x.size(-2) - whole, whole], dim=-2)
        return torch.cat([fast_dropout(touched, self.p), untouched], dim=-2)


@contextmanager
def exempting(module: nn.Module, share: int | None) -> Iterator[None]:
    """Exempt the last 1/`share` of the rows from every `Dropout` of `module` inside the `with` block.

    If `share` is None, no row is exempt.
    """
    dropouts = [each for each in module.modules() if isinstance(each, Dropout)]
    for each in dropouts:
        each.exempt = share
    try:
        yield
    finally:
        for each in dropouts:
            each.exempt = None


def fast_dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability `p`, and divide the kept elements by 1 - p.

    Random numbers are from torch's CPU generator.
    """
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
    """Draw an int16 mask: all bits are set (-1) for kept elements, and no bit is set (0) for dropped elements.

    An element is dropped with probability `drop` / 2^15. One draw of 64 bits is used for four elements. All operations
    are on 16-bit integers, because a vector register has room for more of them than of wider numbers.
    """
    places = math.prod(shape)
    draws = torch.empty(-(-places // 4), dtype=torch.int64).random_(-(2**63), None)
    uniform = draws.view(torch.int16)[:places].view(shape).bitwise_right_shift_(1)  # in [-2^14, 2^14)
    # The sign of the difference tells whether u < 2^14 - drop. The shift copies the sign to all bits.
    return uniform.sub_(2 ** (BITS - 1) - drop).bitwise_right_shift_(BITS)


def _masked(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    integers = INTEGER_TYPES[x.dtype]
    return (x.contiguous().view(integers) & kept.to(integers)).view(x.dtype).mul_(scale)
