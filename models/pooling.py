"""From the backbone's hidden states to one vector a sentence.

`hidden_states` is what transformers calls by that name: entry 0 is the output of the embedding layer, entry i that
of layer i, each (N, L, D); `mask` is the attention mask (N, L), special tokens included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


POOLINGS: dict[str, Pooling] = {
    "cls": cls,
    "mean": mean,
    "first_last": first_last,
    "first_last_1": first_last_1,
    "last2": last2,
}

AVERAGED_LAYERS: dict[str, tuple[int, int]] = {
    "first_last": (0, -1),
    "first_last_1": (1, -1),
    "last2": (-2, -1),
}
"""The entries of `hidden_states` that a pooling averages; the others read the last layer alone."""


def _mean_over_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)
