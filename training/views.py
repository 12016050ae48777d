"""Needs to views: the only code that runs an encoder while training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.encoder import Encoder, dropout_off
from models.tokenizer import Tokens
from training.objectives.base import Needs, Views
from training.objectives.contrastive import full_precision


def tokenise(encoder: Encoder, sentences: Sequence[str], max_length: int) -> list[Tokens]:
    """Token ids of each sentence, cut to `max_length` or to the encoder's own limit if that is less."""
    return encoder.tokenizer.encode(sentences, max_length=min(max_length, encoder.max_length))


def encode_views(
    encoder: Encoder,
    needs: Needs,
    sentences: Sequence[str],
    *,
    max_length: int,
    teacher: Encoder | None = None,
    autocast: torch.dtype | None = None,
) -> tuple[Views, int]:
    """The views of `sentences` that `needs` names, and the number of tokens that went through the encoder.

    The dropout views are one padded pass over V x N rows. `autocast` is the type of the encoder's matrix products,
    None for float32; the views are float32 either way.

    Raises:
        ValueError: a teacher is needed and none is given.
    """
    if needs.teacher and teacher is None:
        raise ValueError("the objective needs a teacher and the run has none")
    with torch.autocast(encoder.device.type, dtype=autocast, enabled=autocast is not None):
        tokens = tokenise(encoder, sentences, max_length)
        ids, mask = encoder.tensors(tokens)
        noisy = encoder(ids.repeat(needs.views, 1), mask.repeat(needs.views, 1))
        clean = _without_dropout(encoder, ids, mask) if needs.clean else None
        reference = _frozen(teacher, sentences, max_length) if needs.teacher and teacher is not None else None
    views = Views(
        noisy=full_precision(noisy).view(needs.views, len(sentences), -1),
        clean=None if clean is None else full_precision(clean),
        teacher=None if reference is None else full_precision(reference),
    )
    return views, sum(map(len, tokens)) * (needs.views + needs.clean)


def _without_dropout(encoder: Encoder, ids: Tensor, mask: Tensor) -> Tensor:
    with dropout_off(encoder):
        pooled: Tensor = encoder(ids, mask)
    return pooled


def _frozen(teacher: Encoder, sentences: Sequence[str], max_length: int) -> Tensor:
    with torch.no_grad(), dropout_off(teacher):
        pooled: Tensor = teacher(*teacher.tensors(tokenise(teacher, sentences, max_length)))
    return pooled
