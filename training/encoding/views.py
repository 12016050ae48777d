"""Encoding of views: the vectors of the same sentences from different encoder passes.

All encoder passes of a training step begin in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.bundle.tokenizer import Tokens
from models.encoder.encoder import Encoder, dropout_off, full_precision
from training.encoding.packing import Pass, encode_passes, group_by_length
from training.objectives.base import Needs, Views

GRANULE = {"cuda": 8}
"""Number of tokens, by device type. Sentences are padded to a multiple of this number.

Other devices need no padding. Padding reduces the number of different shapes, so fewer CUDA graphs must be recorded.
Matrix units are also faster with such lengths.
"""

Augmentation = Callable[[Encoder, Tensor, Tensor], Tensor]
"""Type of a function from an encoder, token ids and mask (n, L) to pooled vectors (n, D) of augmented sentences."""


def make_passes(
    encoder: Encoder, tokens: Sequence[Tokens], firsts: Sequence[Tokens] | None = None, *, most: int | None = None
) -> list[Pass]:
    """Divide sentences into passes on the encoder's device, with at most `most` sentences each.

    `firsts` are the tokens of the first view, if the first view has different texts.
    """
    groups = group_by_length([len(sentence) for sentence in tokens], device=encoder.device.type, most=most)
    passes = [_padded(encoder, tokens, rows) for rows in groups]
    if firsts is None:
        return passes
    return [each._replace(first=_padded(encoder, firsts, rows)) for each, rows in zip(passes, groups, strict=True)]


def _padded(encoder: Encoder, tokens: Sequence[Tokens], rows: Sequence[int]) -> Pass:
    longest = max(len(tokens[i]) for i in rows)
    granule = GRANULE.get(encoder.device.type, 1)
    length = max(longest, min(-(-longest // granule) * granule, encoder.max_length))
    arrays = [np.array(rows), *encoder.tokenizer.pad([tokens[i] for i in rows], length=length)]
    places, ids, mask = (to_device(array, encoder.device) for array in arrays)
    return Pass(places, ids, mask)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy the array to the device without waiting."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def in_batch_order(passes: Iterable[Pass], pooled: Tensor) -> Tensor:
    """Reorder n vectors (..., n, D) from the order of the passes to the order of the batch."""
    return pooled[..., torch.cat([each.rows for each in passes]).argsort(), :]


class ViewEncoder(nn.Module):
    """A module that computes all views that an objective needs."""

    def __init__(
        self,
        encoder: Encoder,
        needs: Needs,
        *,
        autocast: torch.dtype | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        """Initialise the module.

        `autocast` is the dtype of matrix products, and None means float32. `augmentation` changes the last view.
        """
        super().__init__()
        self.encoder = encoder
        self.needs = needs
        self.autocast = autocast
        self.augmentation = augmentation

    def forward(self, passes: Sequence[Pass]) -> Tensor:
        """Encode the n sentences of all passes to (V, n, D) views.

        If the objective needs clean views, which are computed without dropout, they are the last ones. Positive pairs
        of two texts have two clean views, one for each text. The result is float32 under any `autocast`. If possible, a
        single run of the encoder computes all views except an augmented one.
        """
        plain, clean = self.needs.views - (self.augmentation is not None), self.needs.clean
        with autocast(self.encoder, self.autocast):
            if firsts := [each.first for each in passes if each.first is not None]:
                first = encode_passes(self.encoder, firsts, clean=clean)
                others = encode_passes(self.encoder, passes, plain - 1, clean=clean)
                return torch.cat([first[:1], others[: plain - 1], first[1:], others[plain - 1 :]])
            views = encode_passes(self.encoder, passes, plain, clean=clean) if plain or clean else None
            if self.augmentation is None:
                assert views is not None, "without an augmentation, there is a plain or a clean view"
                return views
            changed = [self.augmentation(self.encoder, each.input_ids, each.attention_mask) for each in passes]
        augmented = full_precision(torch.cat(changed))[None]
        return augmented if views is None else torch.cat([views[:plain], augmented, views[plain:]])

    def split(self, pooled: Tensor, teacher: Tensor | None, start: Tensor | None = None) -> Views:
        clean = pooled[self.needs.views :] if self.needs.clean else None
        return Views(noisy=pooled[: self.needs.views], clean=clean, teacher=teacher, start=start)


FrozenEncoder = Callable[[Sequence[Tokens]], Tensor]
"""Type of a function from the token ids of n sentences to the vectors (n, D') of a frozen encoder."""


@dataclass(frozen=True)
class Teacher:
    """A frozen encoder without dropout and gradient. It encodes each sentence once per step."""

    encoder: Encoder
    autocast: torch.dtype | None = None

    def __call__(self, tokens: Sequence[Tokens]) -> Tensor:
        """Return the vectors (n, D') of tokenised sentences. The tokens are from the teacher's vocabulary."""
        passes = make_passes(self.encoder, tokens)
        with torch.no_grad(), dropout_off(self.encoder), autocast(self.encoder, self.autocast):
            (pooled,) = encode_passes(self.encoder, passes)
        return in_batch_order(passes, pooled)


@contextmanager
def autocast(encoder: Encoder, dtype: torch.dtype | None) -> Iterator[None]:
    """Compute matrix products in `dtype` inside the `with` block. None keeps float32."""
    with torch.autocast(encoder.device.type, dtype=dtype, enabled=dtype is not None):
        yield
