"""Passes of different lengths run through an encoder as one sequence of tokens.

All that a layer does but attention, it does to each token alone; so all passes of a step share one run of every matrix
product, norm and dropout, and only attention is computed pass by pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.encoder import Encoder, position_embeddings
from training.attention import packs
from training.objectives.contrastive import full_precision


class Pass(NamedTuple):
    """Sentences of like length, padded to the longest of them."""

    rows: Tensor
    """(n,) their places in the batch"""
    input_ids: Tensor
    """(n, L)"""
    attention_mask: Tensor
    """(n, L)"""


def encoded(encoder: Encoder, passes: Sequence[Pass], copies: int = 1) -> Tensor:
    """Vectors (copies, n, D), float32 at least: the n sentences of all passes one after the other, `copies` times."""
    run = _packed if packs(encoder.backbone) else _apart
    vectors = [full_precision(each) for each in run(encoder, passes, copies)]
    return torch.cat([each.view(copies, -1, encoder.dim) for each in vectors], dim=1)


def _apart(encoder: Encoder, passes: Sequence[Pass], copies: int) -> list[Tensor]:
    return [encoder(each.input_ids.repeat(copies, 1), each.attention_mask.repeat(copies, 1)) for each in passes]


def _packed(encoder: Encoder, passes: Sequence[Pass], copies: int) -> list[Tensor]:
    """Vectors (copies x n, D) of each pass, of one run over (1, T) tokens."""
    ids = [each.input_ids.repeat(copies, 1) for each in passes]
    masks = [each.attention_mask.repeat(copies, 1) for each in passes]
    first = _first_position(encoder)
    positions = [torch.arange(first, first + each.size(1), device=each.device).expand_as(each) for each in ids]
    layers = encoder.layers(
        torch.cat([each.flatten() for each in ids])[None],
        None,
        position_ids=torch.cat([each.flatten() for each in positions])[None],
        packed=[_additive(mask) for mask in masks],
    )
    parts = zip(*(torch.split(layer[0], [mask.numel() for mask in masks]) for layer in layers), strict=True)
    return [
        encoder.pooled([layer.view(*mask.shape, -1) for layer in part], mask)
        for part, mask in zip(parts, masks, strict=True)
    ]


def _additive(mask: Tensor) -> Tensor:
    """What is added to the scores (n, heads, L, L) of sentences with this mask (n, L)."""
    return torch.where(mask[:, None, None, :].bool(), 0.0, torch.finfo(torch.float32).min)


def _first_position(encoder: Encoder) -> int:
    """Of a sentence's first token; those of RoBERTa and its kin begin after a padding index."""
    table = position_embeddings(encoder.backbone)
    return 0 if table is None or table.padding_idx is None else table.padding_idx + 1
