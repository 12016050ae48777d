"""Needs to views: the only code that runs an encoder while training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.encoder import Encoder, dropout_off
from models.precision import full_precision
from models.tokenizer import Tokens
from training.objectives.base import Needs, Views
from training.passes.packing import Pass, encoded
from training.passes.passes import by_length

GRANULE = {"cuda": 8}
"""To a multiple of so many tokens sentences are padded, on other devices not at all: few shapes are few steps to
record, and the matrix units like them."""

Augmentation = Callable[[Encoder, Tensor, Tensor], Tensor]
"""An encoder, token ids and mask (n, L) to pooled vectors (n, D) of sentences that were changed on the way."""


def in_passes(
    encoder: Encoder, tokens: Sequence[Tokens], firsts: Sequence[Tokens] | None = None, *, most: int | None = None
) -> list[Pass]:
    """Every sentence once, on the encoder's device; `most` is the number of sentences a pass may have.

    `firsts` are the tokens of the first view, where it has other texts.
    """
    groups = by_length([len(sentence) for sentence in tokens], device=encoder.device.type, most=most)
    passes = [_padded(encoder, tokens, rows) for rows in groups]
    if firsts is None:
        return passes
    return [each._replace(first=_padded(encoder, firsts, rows)) for each, rows in zip(passes, groups, strict=True)]


def _padded(encoder: Encoder, tokens: Sequence[Tokens], rows: Sequence[int]) -> Pass:
    longest = max(len(tokens[i]) for i in rows)
    granule = GRANULE.get(encoder.device.type, 1)
    length = max(longest, min(-(-longest // granule) * granule, encoder.max_length))
    arrays = [np.array(rows), *encoder.tokenizer.pad([tokens[i] for i in rows], length=length)]
    places, ids, mask = (sent(array, encoder.device) for array in arrays)
    return Pass(places, ids, mask)


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device; nobody waits for it to arrive."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def in_order(passes: Iterable[Pass], pooled: Tensor) -> Tensor:
    """(..., n, D), the sentences of all passes one after the other, to the order they have in the batch."""
    return pooled[..., torch.cat([each.rows for each in passes]).argsort(), :]


class ViewEncoder(nn.Module):
    """An encoder as an objective sees it: a sentence goes in, all the views of it that were asked for come out."""

    def __init__(
        self,
        encoder: Encoder,
        needs: Needs,
        *,
        autocast: torch.dtype | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        """`autocast` is the type of the matrix products, None for float32; an augmentation changes the last view."""
        super().__init__()
        self.encoder = encoder
        self.needs = needs
        self.autocast = autocast
        self.augmentation = augmentation

    def forward(self, passes: Sequence[Pass]) -> Tensor:
        """Return (V, n, D) views of the n sentences of all passes, one pass after the other, then the clean views.

        There is one clean view, or one of each text of a pair: (1, n, D) or (2, n, D). All are float32, whatever
        `autocast` says. All views but an augmented one share a run of the encoder where they can.
        """
        plain, clean = self.needs.views - (self.augmentation is not None), self.needs.clean
        with autocast(self.encoder, self.autocast):
            if firsts := [each.first for each in passes if each.first is not None]:
                first = encoded(self.encoder, firsts, clean=clean)
                others = encoded(self.encoder, passes, plain - 1, clean=clean)
                return torch.cat([first[:1], others[: plain - 1], first[1:], others[plain - 1 :]])
            views = encoded(self.encoder, passes, plain, clean=clean) if plain or clean else None
            if self.augmentation is None:
                assert views is not None, "there are views"
                return views
            changed = [self.augmentation(self.encoder, each.input_ids, each.attention_mask) for each in passes]
        augmented = full_precision(torch.cat(changed))[None]
        return augmented if views is None else torch.cat([views[:plain], augmented, views[plain:]])

    def split(self, pooled: Tensor, teacher: Tensor | None, start: Tensor | None = None) -> Views:
        """Name what `forward` made of a batch."""
        clean = pooled[self.needs.views :] if self.needs.clean else None
        return Views(noisy=pooled[: self.needs.views], clean=clean, teacher=teacher, start=start)


Frozen = Callable[[Sequence[Tokens]], Tensor]
"""Sentences in an encoder's vocabulary to their vectors (n, D'), which are no part of the gradient."""


@dataclass(frozen=True)
class Teacher:
    """A frozen encoder; each sentence passes through it once a step, dropout off, nothing kept for a gradient."""

    encoder: Encoder
    autocast: torch.dtype | None = None

    def __call__(self, tokens: Sequence[Tokens]) -> Tensor:
        """(n, D') of sentences in its own vocabulary."""
        passes = in_passes(self.encoder, tokens)
        with torch.no_grad(), dropout_off(self.encoder), autocast(self.encoder, self.autocast):
            (pooled,) = encoded(self.encoder, passes)
        return in_order(passes, pooled)


@contextmanager
def autocast(encoder: Encoder, dtype: torch.dtype | None) -> Iterator[None]:
    """Matrix products in `dtype` inside the block; None leaves them in float32."""
    with torch.autocast(encoder.device.type, dtype=dtype, enabled=dtype is not None):
        yield
