"""Gradient caching: a batch larger than the memory of one pass, with the gradient of the whole.

Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (RepL4NLP 2021): a
contrastive loss sees the batch through its pooled vectors alone. So encode without keeping anything, take the loss's
gradient at the vectors, then encode each part again and send its share of that gradient through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import Tensor

from training.random_state import RandomState

X = TypeVar("X")


def encode_twice(
    encode: Callable[[X], Tensor],
    parts: Sequence[X],
    gradient_of: Callable[[Tensor], Sequence[Tensor]],
    *,
    device: torch.device,
    apart: Callable[[], AbstractContextManager[None]],
) -> None:
    """Backward through `encode`, a part at a time.

    `gradient_of` gets the vectors (V, n, D) of all parts, one part after the other, and returns the loss's gradient at
    each part's own. `apart` is entered for every part but the last: gradients of several processes are exchanged once.
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
            with apart():
                torch.autograd.backward(encode(part), gradient)
        else:
            torch.autograd.backward(encode(part), gradient)
