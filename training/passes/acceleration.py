"""Faster training of a loaded encoder. Weights, their names and the computed function stay the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.encoder.encoder import Encoder
from training.passes import attention
from training.passes.attention import FAMILIES
from training.passes.dropout import Dropout


def swift(encoder: Encoder) -> Encoder:
    """Replace the encoder's attention in place, and on the CPU also dropout, residuals and word embeddings.

    Without autocast, evaluation is bit for bit the same. Training computes the same function with different random
    numbers.
    """
    if encoder.backbone.config.model_type in FAMILIES:
        attention.use(encoder.backbone)
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
    """Keep the gradient of the word embeddings sparse until all passes of a step have contributed.

    For each pass, torch would write a dense gradient of the whole table, nearly all zeros, into new memory. Here the
    dense gradient is written once per backward pass into a reused buffer. Copy the gradient to keep it, because the
    next backward pass overwrites the buffer.
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
