"""Passes of different lengths run through an encoder as one sequence of tokens.

All that a layer does but attention, it does to each token alone; so all passes of a step share one run of every matrix
product, norm and dropout, and only attention is computed pass by pass. Where [CLS] is pooled, the last layer does none
of it to the other tokens, which nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.encoder import Encoder, position_embeddings
from models.precision import full_precision
from training.attention import packs


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
    last = _after_attention(encoder) if encoder.pooling == "cls" else None
    with _first_tokens(masks, of=last):
        layers = encoder.layers(
            torch.cat([each.flatten() for each in ids])[None],
            None,
            position_ids=torch.cat([each.flatten() for each in positions])[None],
            packed=[_additive(mask) for mask in masks],
        )
    if last is not None:
        masks = [mask[:, :1] for mask in masks]
    parts = zip(*(torch.split(layer.squeeze(0), [mask.numel() for mask in masks]) for layer in layers), strict=True)
    return [
        encoder.pooled([layer.view(*mask.shape, -1) for layer in part], mask)
        for part, mask in zip(parts, masks, strict=True)
    ]


def _after_attention(encoder: Encoder) -> nn.Module | None:
    """What BERT and its like do in their last layer next to attention, with all that follows up to the end.

    It takes the attended values and the residual, (1, T, D) each. None in families of another build.
    """
    layers = getattr(getattr(encoder.backbone, "encoder", None), "layer", None)
    module = layers[-1].attention.output if layers else None
    return module if isinstance(module, nn.Module) else None


@contextmanager
def _first_tokens(masks: Sequence[Tensor], *, of: nn.Module | None) -> Iterator[None]:
    """Inside the block a module is given those alone of what it takes, (1, T, D), in parts with these masks (n, L)."""
    if of is None:
        yield
        return
    ends = accumulate(mask.numel() for mask in masks)
    places = torch.cat(
        [
            torch.arange(end - mask.numel(), end, mask.size(1), device=mask.device)
            for end, mask in zip(ends, masks, strict=True)
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
