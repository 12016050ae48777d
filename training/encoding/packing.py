"""Packing of sentences of different lengths into one sequence of tokens, almost without padding.

A pass is a group of sentences with the same padded length. Every operation of a layer except attention treats each
token separately, so each matrix product, norm and dropout is computed once for all passes of a step. Only attention is
computed for each pass separately. With [CLS] pooling, the last layer computes only the [CLS] tokens after attention,
because pooling ignores all other tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.encoder.encoder import Encoder, dropout_off, first_position, full_precision
from training.encoding.attention import Dropout, PackedLayout, exempting, supports_packing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GRANULE = {"cpu": 64}
"""Number of tokens, by device type. Each view of the batch is padded to a multiple of this number.

Other devices need no padding. On CPUs, oneDNN compiles bf16 matrix products for each number of rows, which takes a
tenth of a step. With padding, steps of similar length use the same compiled products (docs/log.md).
"""


class Pass(NamedTuple):
    """A group of sentences of similar length, padded to the longest one."""

    rows: Tensor
    """Rows of the batch, (n,)."""
    input_ids: Tensor
    """Token ids, (n, L)."""
    attention_mask: Tensor
    """Attention mask, (n, L)."""
    first: Pass | None = None
    """The pass of the same rows for the first view, if this view has different texts."""


def encode_passes(encoder: Encoder, passes: Sequence[Pass], copies: int = 1, *, clean: bool = False) -> Tensor:
    """Compute vectors (copies, n, D) of the n sentences of all passes, in float32 or wider.

    Each sentence has `copies` vectors, each with its own dropout. Sentences are in the order of the passes. With
    `clean`, the result is (copies + 1, n, D), and the last vector of each sentence is computed without dropout.
    """
    if clean and not (copies and _can_exempt(encoder.backbone)):
        noisy = [encode_passes(encoder, passes, copies)] if copies else []
        with dropout_off(encoder):
            return torch.cat([*noisy, encode_passes(encoder, passes)])
    if not supports_packing(encoder.backbone):
        vectors = [encoder(each.input_ids.repeat(copies, 1), each.attention_mask.repeat(copies, 1)) for each in passes]
    else:
        vectors = _encode_packed(encoder, passes, copies, clean)
    wide = [full_precision(each) for each in vectors]
    noisy, whole = wide[: len(passes)], wide[len(passes) :]
    views = torch.cat([each.view(copies, -1, encoder.dim) for each in noisy], dim=1)
    return torch.cat([views, torch.cat(whole)[None]]) if clean else views


def _can_exempt(backbone: PreTrainedModel) -> bool:
    """Return whether dropout can be switched off for some of the packed sentences."""
    dropouts = [module for module in backbone.modules() if isinstance(module, nn.Dropout)]
    return supports_packing(backbone) and all(isinstance(module, Dropout) for module in dropouts)


def _encode_packed(encoder: Encoder, passes: Sequence[Pass], copies: int, clean: bool) -> list[Tensor]:
    """Compute one tensor of vectors (copies x n, D) for each pass, in a single forward pass over (1, T) tokens.

    With `clean`, each pass is encoded once more without dropout. One tensor (n, D) for each pass then follows the other
    tensors. The copies, and the encoding without dropout, have equal shares of the T tokens, including padding.
    """
    parts = [(each, copies) for each in passes] + [(each, 1) for each in passes] * clean
    ids = [each.input_ids.repeat(times, 1) for each, times in parts]
    masks = [each.attention_mask.repeat(times, 1) for each, times in parts]
    first = first_position(encoder.backbone)
    positions = [torch.arange(first, first + each.size(1), device=each.device).expand_as(each) for each in ids]
    idle = -sum(each.input_ids.numel() for each in passes) % GRANULE.get(encoder.device.type, 1)
    packed = PackedLayout([_additive(mask) for mask in masks], (copies * idle, clean * idle), whole=clean * len(passes))
    last = _after_attention(encoder) if encoder.pooling == "cls" else None
    with exempting(encoder.backbone, copies + 1 if clean else None), _only_first_tokens(packed, of=last):
        layers = encoder.layers(
            _sequence(ids, packed.margins), None, position_ids=_sequence(positions, packed.margins), packed=packed
        )
    if last is not None:
        packed, masks = PackedLayout([each[..., :1] for each in packed.masks]), [mask[:, :1] for mask in masks]
    split = zip(*(packed.split(layer.squeeze(0)) for layer in layers), strict=True)
    return [
        encoder.pooled([layer.view(*mask.shape, -1) for layer in part], mask)
        for part, mask in zip(split, masks, strict=True)
    ]


def _sequence(parts: Sequence[Tensor], margins: tuple[int, int]) -> Tensor:
    """Concatenate the parts, each (n, L), into one sequence (1, T) with `margins` zeros before and after it."""
    return F.pad(torch.cat([each.flatten() for each in parts]), margins)[None]


def _after_attention(encoder: Encoder) -> nn.Module | None:
    """Return the module that follows attention in BERT's last layer, or None for other architectures.

    The module takes the attended values and the residual, each (1, T, D).
    """
    layers = getattr(getattr(encoder.backbone, "encoder", None), "layer", None)
    module = layers[-1].attention.output if layers else None
    return module if isinstance(module, nn.Module) else None


@contextmanager
def _only_first_tokens(packed: PackedLayout, *, of: nn.Module | None) -> Iterator[None]:
    """Reduce the inputs of the module `of` to the first token of each sentence inside the `with` block.

    Without this reduction, each input (1, T, D) has all tokens. If `of` is None, nothing is reduced.
    """
    if of is None:
        yield
        return
    ends = accumulate((mask.size(0) * mask.size(-1) for mask in packed.masks), initial=packed.margins[0])
    places = torch.cat(
        [
            torch.arange(start, end, mask.size(-1), device=mask.device)
            for (start, end), mask in zip(pairwise(ends), packed.masks, strict=True)
        ]
    )
    handle = of.register_forward_pre_hook(lambda _, inputs: tuple(each.index_select(1, places) for each in inputs))
    try:
        yield
    finally:
        handle.remove()


def _additive(mask: Tensor) -> Tensor:
    """Return the additive attention mask of the boolean `mask` (n, L), for the scores (n, heads, L, L)."""
    return torch.where(mask[:, None, None, :].bool(), 0.0, torch.finfo(torch.float32).min)


# Division of a batch into passes of similar length, to reduce padding. The division changes only which sentences are
# padded together. The batch and its in-batch negatives stay the same.

PASS_COST = {"cpu": 50}
"""Fixed cost of a pass by device type. The unit is the time to encode one token.

Values from 25 to 100 give the same speed (docs/log.md).

On all other device types, a single pass is fastest.
"""


def group_by_length(lengths: Sequence[int], *, device: str, most: int | None = None) -> list[list[int]]:
    """Divide the rows of a batch into passes, and return the rows of each pass.

    Rows are sorted by length, longest first. On CPUs, rows are divided where an additional pass saves more padding than
    it costs. On other devices, a pass ends only after `most` rows.

    `lengths` are in tokens, `device` is a torch device type, and `most` is the maximum number of sentences per pass.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    if device not in PASS_COST:
        most = most or max(len(order), 1)
        return [order[start : start + most] for start in range(0, len(order), most)]
    longest = np.array([lengths[row] for row in order])
    return [order[start:end] for start, end in _cuts(longest, PASS_COST[device], most or len(order))]


def _cuts(longest: np.ndarray, cost: int, most: int) -> list[tuple[int, int]]:
    """Return the cheapest division of the descending lengths `longest` into passes, as (start, end) pairs.

    A pass costs `cost` plus its number of rows times its longest row.
    """
    size = len(longest)
    # least[k] is the minimal cost of the first k rows. begin[k] is the start of the last pass of the cheapest division.
    least = np.zeros(size + 1)
    begin = np.zeros(size + 1, dtype=int)
    for end in range(1, size + 1):
        starts = np.arange(max(0, end - most), end)
        totals = least[starts] + cost + (end - starts) * longest[starts]
        begin[end] = starts[totals.argmin()]
        least[end] = totals.min()
    cuts = []
    end = size
    while end:
        cuts.append((int(begin[end]), end))
        end = int(begin[end])
    return cuts[::-1]
