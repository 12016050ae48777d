"""Gradient caching: the exact gradient of a batch that is larger than the memory of one pass.

Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (RepL4NLP 2021): a
contrastive loss depends on the batch only through its pooled vectors. So all parts are first encoded without gradient,
and the gradient of the loss with respect to the vectors is computed. Then each part is encoded again, and its share of
that gradient is propagated to the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import Tensor

from training.machine.devices import RandomState

X = TypeVar("X")


def encode_twice(
    encode: Callable[[X], Tensor],
    parts: Sequence[X],
    gradient_of: Callable[[Tensor], Sequence[Tensor]],
    *,
    device: torch.device,
    no_sync: Callable[[], AbstractContextManager[None]],
) -> None:
    """Backpropagate through `encode`, one part at a time.

    `gradient_of` takes the vectors (V, n, D) of all parts, concatenated, and returns the loss's gradient for each part.
    Backpropagation of every part but the last is inside the context `no_sync()`, so processes exchange gradients only
    once.
    """
    before, vectors = [], []
    with torch.no_grad():
        for part in parts:
            before.append(RandomState.of(device))
            vectors.append(encode(part))
    gradients = gradient_of(torch.cat(vectors, dim=1))
    for number, (part, drawn, gradient) in enumerate(zip(parts, before, gradients, strict=True), start=1):
        drawn.restore(device)
        if number < len(parts):
            with no_sync():
                torch.autograd.backward(encode(part), gradient)
        else:
            torch.autograd.backward(encode(part), gradient)
