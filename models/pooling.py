"""From the backbone's hidden states to one vector a sentence.

`hidden_states` is what transformers calls by that name: entry 0 is the output of the embedding layer, entry i that
of layer i, each (N, L, D); `mask` is the attention mask (N, L), special tokens included.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Pooling = Callable[[Sequence[Tensor], Tensor], Tensor]


def cls(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:  # noqa: ARG001 (one signature for all)
    """The last layer at the first token (SimCSE's `cls_before_pooler`)."""
    return hidden_states[-1][:, 0]


def mean(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The last layer, averaged over the tokens."""
    return _mean_over_tokens(hidden_states[-1], mask)


def first_last(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Embedding output and last layer: the "first-last" of the published 56.70 for BERT-base."""
    return _mean_over_tokens((hidden_states[0] + hidden_states[-1]) / 2, mask)


def first_last_1(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """First and last layer: SimCSE's code since January 2022, 60.7 for BERT-base."""
    return _mean_over_tokens((hidden_states[1] + hidden_states[-1]) / 2, mask)


def last2(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The last two layers (SimCSE's `avg_top2`)."""
    return _mean_over_tokens((hidden_states[-2] + hidden_states[-1]) / 2, mask)


def max_over_tokens(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Take the largest value of each coordinate in the last layer."""
    return hidden_states[-1].masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)


def mean_sqrt_len_tokens(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Divide the sum of the last layer by the root of the number of tokens."""
    hidden = hidden_states[-1]
    return mean(hidden_states, mask) * mask.sum(1, keepdim=True).to(hidden.dtype).sqrt()


def weightedmean(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Average the last layer, the n-th token n times (SGPT)."""
    return _mean_over_tokens(hidden_states[-1], mask * _places(mask))


def lasttoken(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Take the last layer at the last token."""
    places = mask * _places(mask)
    last = places == places.amax(1, keepdim=True)
    return _mean_over_tokens(hidden_states[-1], last.to(mask.dtype))


POOLINGS: dict[str, Pooling] = {
    "cls": cls,
    "mean": mean,
    "first_last": first_last,
    "first_last_1": first_last_1,
    "last2": last2,
    "max": max_over_tokens,
    "mean_sqrt_len_tokens": mean_sqrt_len_tokens,
    "weightedmean": weightedmean,
    "lasttoken": lasttoken,
}
"""Those of SimCSE, and those of sentence-transformers by its names for them."""

AVERAGED_LAYERS: dict[str, tuple[int, int]] = {
    "first_last": (0, -1),
    "first_last_1": (1, -1),
    "last2": (-2, -1),
}
"""The entries of `hidden_states` that a pooling averages; the others read the last layer alone."""

JOINED = "+"
"""Between the names of poolings whose vectors are put side by side."""


def parts(name: str) -> list[str]:
    """Split the name of a pooling: `mean+max` is two poolings, put side by side.

    Raises:
        ValueError: a part is unknown, or reads more than the last layer beside others.
    """
    found = name.split(JOINED)
    for one in found:
        if one not in POOLINGS:
            raise ValueError(f"pooling {one!r} is none of {', '.join(POOLINGS)}")
        if one in AVERAGED_LAYERS and len(found) > 1:
            raise ValueError(f"pooling {name!r}: {one} can't be joined with others, for it averages layers")
    return found


def option(given: str) -> str:
    """Check the name of a pooling on a command line."""
    try:
        parts(given)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return given


def pool(name: str, hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Vectors (N, D), or (N, parts x D) of joined poolings."""
    pooled = [POOLINGS[one](hidden_states, mask) for one in parts(name)]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=-1)  # a graph of one pooling has nothing to join


def _mean_over_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def _places(mask: Tensor) -> Tensor:
    """The place of each token in its text, from 1 on."""
    return torch.arange(1, mask.shape[1] + 1, device=mask.device)
