"""Passes of different lengths run through an encoder as one sequence of tokens.

All that a layer does but attention, it does to each token alone; so all passes of a step share one run of every matrix
product, norm and dropout, and only attention is computed pass by pass. Where [CLS] is pooled, the last layer does none
of it to the other tokens, which nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.encoder import Encoder, dropout_off, position_embeddings
from models.precision import full_precision
from training.passes.attention import Packed, packs
from training.passes.dropout import Dropout, sparing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GRANULE = {"cpu": 64}
"""To a multiple of so many tokens a copy is filled up, on other devices not at all. oneDNN compiles the bf16 products
of a step for each number of rows, which takes a tenth of it; so steps of like length share them (docs/log.md)."""


class Pass(NamedTuple):
    """Sentences of like length, padded to the longest of them."""

    rows: Tensor
    """(n,) their places in the batch"""
    input_ids: Tensor
    """(n, L)"""
    attention_mask: Tensor
    """(n, L)"""
    first: Pass | None = None
    """The texts of the first view, where it has others."""


def encoded(encoder: Encoder, passes: Sequence[Pass], copies: int = 1, *, clean: bool = False) -> Tensor:
    """Vectors (copies, n, D), float32 at least: the n sentences of all passes one after the other, `copies` times.

    With `clean` there is one copy more, the last, without dropout.
    """
    if clean and not (copies and _can_spare(encoder.backbone)):
        noisy = [encoded(encoder, passes, copies)] if copies else []
        with dropout_off(encoder):
            return torch.cat([*noisy, encoded(encoder, passes)])
    if not packs(encoder.backbone):
        vectors = _apart(encoder, passes, copies)
    else:
        vectors = _packed(encoder, passes, copies, clean)
    wide = [full_precision(each) for each in vectors]
    noisy, whole = wide[: len(passes)], wide[len(passes) :]
    views = torch.cat([each.view(copies, -1, encoder.dim) for each in noisy], dim=1)
    return torch.cat([views, torch.cat(whole)[None]]) if clean else views


def _can_spare(backbone: PreTrainedModel) -> bool:
    """Whether some of the packed sentences can be left without dropout, and the others not."""
    dropouts = [module for module in backbone.modules() if isinstance(module, nn.Dropout)]
    return packs(backbone) and all(isinstance(module, Dropout) for module in dropouts)


def _apart(encoder: Encoder, passes: Sequence[Pass], copies: int) -> list[Tensor]:
    return [encoder(each.input_ids.repeat(copies, 1), each.attention_mask.repeat(copies, 1)) for each in passes]


def _packed(encoder: Encoder, passes: Sequence[Pass], copies: int, clean: bool) -> list[Tensor]:
    """Vectors (copies x n, D) of each pass, then with `clean` (n, D) of each, of one run over (1, T) tokens.

    All copies have an equal share of the T tokens, those that fill them up included.
    """
    parts = [(each, copies) for each in passes] + [(each, 1) for each in passes] * clean
    ids = [each.input_ids.repeat(times, 1) for each, times in parts]
    masks = [each.attention_mask.repeat(times, 1) for each, times in parts]
    first = _first_position(encoder)
    positions = [torch.arange(first, first + each.size(1), device=each.device).expand_as(each) for each in ids]
    idle = -sum(each.input_ids.numel() for each in passes) % GRANULE.get(encoder.device.type, 1)
    packed = Packed([_additive(mask) for mask in masks], (copies * idle, clean * idle), whole=clean * len(passes))
    last = _after_attention(encoder) if encoder.pooling == "cls" else None
    with sparing(encoder.backbone, copies + 1 if clean else None), _first_tokens(packed, of=last):
        layers = encoder.layers(
            _sequence(ids, packed.margins), None, position_ids=_sequence(positions, packed.margins), packed=packed
        )
    if last is not None:
        packed, masks = Packed([each[..., :1] for each in packed.masks]), [mask[:, :1] for mask in masks]
    split = zip(*(packed.split(layer.squeeze(0)) for layer in layers), strict=True)
    return [
        encoder.pooled([layer.view(*mask.shape, -1) for layer in part], mask)
        for part, mask in zip(split, masks, strict=True)
    ]


def _sequence(parts: Sequence[Tensor], margins: tuple[int, int]) -> Tensor:
    """(1, T) of the (n, L) of all parts, nought in the margins."""
    return F.pad(torch.cat([each.flatten() for each in parts]), margins)[None]


def _after_attention(encoder: Encoder) -> nn.Module | None:
    """What BERT and its like do in their last layer next to attention, with all that follows up to the end.

    It takes the attended values and the residual, (1, T, D) each. None in families of another build.
    """
    layers = getattr(getattr(encoder.backbone, "encoder", None), "layer", None)
    module = layers[-1].attention.output if layers else None
    return module if isinstance(module, nn.Module) else None


@contextmanager
def _first_tokens(packed: Packed, *, of: nn.Module | None) -> Iterator[None]:
    """Inside the block a module is given those of each sentence alone of what it takes, (1, T, D)."""
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
    """What is added to the scores (n, heads, L, L) of sentences with this mask (n, L)."""
    return torch.where(mask[:, None, None, :].bool(), 0.0, torch.finfo(torch.float32).min)


def _first_position(encoder: Encoder) -> int:
    """Of a sentence's first token; those of RoBERTa and its kin begin after a padding index."""
    table = position_embeddings(encoder.backbone)
    return 0 if table is None or table.padding_idx is None else table.padding_idx + 1
