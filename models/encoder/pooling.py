"""Pooling of the backbone's hidden states to one vector per sentence.

`hidden_states` is as in transformers: entry 0 is the output of the embedding layer, and entry i is the output of layer
i, each (N, L, D). `mask` is the attention mask (N, L), including special tokens.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

Pooling = Callable[[Sequence[Tensor], Tensor], Tensor]


def cls(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:  # noqa: ARG001 (one signature for all)
    """Return the last layer's hidden state of the first token (SimCSE's `cls_before_pooler`)."""
    return hidden_states[-1][:, 0]


def mean(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Average the last layer over the tokens."""
    return _mean_over_tokens(hidden_states[-1], mask)


def mean_of_layers(hidden_states: Sequence[Tensor], mask: Tensor, layers: tuple[int, int]) -> Tensor:
    """Average the outputs of two layers over the tokens and over the two layers."""
    first, second = layers
    return _mean_over_tokens((hidden_states[first] + hidden_states[second]) / 2, mask)


def max_over_tokens(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Take the maximum of each component over the tokens of the last layer."""
    return hidden_states[-1].masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)


def mean_sqrt_len_tokens(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Sum the last layer over the tokens, and divide the sum by the square root of the number of tokens."""
    hidden = hidden_states[-1]
    return mean(hidden_states, mask) * mask.sum(1, keepdim=True).to(hidden.dtype).sqrt()


def weightedmean(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Average the last layer with weight n for the n-th token (SGPT)."""
    return _mean_over_tokens(hidden_states[-1], mask * _places(mask))


def lasttoken(hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return the last layer's hidden state of the last token."""
    places = mask * _places(mask)
    last = places == places.amax(1, keepdim=True)
    return _mean_over_tokens(hidden_states[-1], last.to(mask.dtype))


AVERAGED_LAYERS: dict[str, tuple[int, int]] = {
    "first_last": (0, -1),  # With this "first-last" pooling, the published STS average of BERT-base is 56.70.
    "first_last_1": (1, -1),  # SimCSE's code has computed this since January 2022: 60.7 for BERT-base.
    "last2": (-2, -1),  # SimCSE's `avg_top2`.
}
"""Indices of the `hidden_states` that a pooling averages. Poolings without an entry read only the last layer."""

POOLINGS: dict[str, Pooling] = {
    "cls": cls,
    "mean": mean,
    **{name: partial(mean_of_layers, layers=layers) for name, layers in AVERAGED_LAYERS.items()},
    "max": max_over_tokens,
    "mean_sqrt_len_tokens": mean_sqrt_len_tokens,
    "weightedmean": weightedmean,
    "lasttoken": lasttoken,
}
"""Poolings by name. The poolings that average layers are from SimCSE. The others have sentence-transformers' names."""

JOINED = "+"
"""Separator in the names of concatenated poolings."""


def parts(name: str) -> list[str]:
    """Split the name of a pooling at each `+` into the names of the poolings that it concatenates.

    Raises:
        ValueError: a part is unknown, or there are several parts and one of them averages layers.
    """
    found = name.split(JOINED)
    for one in found:
        if one not in POOLINGS:
            raise ValueError(f"pooling {one!r} is not one of {', '.join(POOLINGS)}")
        if one in AVERAGED_LAYERS and len(found) > 1:
            raise ValueError(f"pooling {name!r}: {one} averages layers, so it can't be joined with other poolings")
    return found


def option(given: str) -> str:
    """Check the name of a pooling from the command line, and return the name.

    Raises:
        ArgumentTypeError: the name is not valid; see `parts`.
    """
    try:
        parts(given)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return given


def pool(name: str, hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return pooled vectors (N, D), or (N, parts x D) if `name` concatenates several poolings."""
    pooled = [POOLINGS[one](hidden_states, mask) for one in parts(name)]
    # A single pooling returns early, so that its exported graph has no concatenation.
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=-1)


def _mean_over_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def _places(mask: Tensor) -> Tensor:
    """Return the positions (L,) of the tokens in a text, counted from 1."""
    return torch.arange(1, mask.shape[1] + 1, device=mask.device)
