"""A loaded encoder made quicker to train. Its weights, their names and what it computes stay the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.encoder import Encoder
from training.passes import attention
from training.passes.attention import FAMILIES
from training.passes.dropout import Dropout


def swift(encoder: Encoder) -> Encoder:
    """`encoder` itself with a quicker attention, and on the CPU quicker dropout, residuals and word embeddings.

    Without autocast it computes in evaluation what it did, bit for bit; in training the same function, with other
    random numbers.
    """
    if encoder.backbone.config.model_type in FAMILIES:
        attention.use(encoder.backbone)
    if encoder.device.type != "cpu":  # where torch's own are quick
        return encoder
    if encoder.backbone.config.model_type in FAMILIES:
        encoder.backbone.get_submodule("embeddings").register_forward_hook(_narrow)
    for parent in list(encoder.backbone.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))
    if not torch.distributed.is_initialized():  # processes exchange dense gradients
        _look_up_sparsely(encoder)
    return encoder


def _narrow(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
    """Under bf16 autocast the first term of the sum that runs through all layers is bf16, and so is the sum.

    Norms widen it inside. Torch would keep it in float32, and narrow it for every matrix product that reads it.
    """
    device = embedded.device.type
    narrow = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.bfloat16
    return embedded.bfloat16() if narrow else embedded


def _look_up_sparsely(encoder: Encoder) -> None:
    """Lets the gradient of the word embeddings name the rows it has until all passes of a step have added theirs.

    Torch would write out one as large as the whole table for each pass, nearly all of it zeros and in memory that the
    kernel has yet to map. Here it is written out once a backward, for clipping and optimisers, in the place of the last
    one: who wants to keep a gradient copies it.
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
