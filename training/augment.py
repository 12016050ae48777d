"""Augmentations of a view, on top of its dropout: those of ConSERT (Yan et al., ACL 2021) that DCLR compares, and ours.

What is done to the tokens is a function of what was drawn. Padding stands at the end of a sentence, takes no part and
stays where it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.encoder import Encoder


def draw_token_order(mask: Tensor, rng: torch.Generator | None = None) -> Tensor:
    """A random order of each sentence's tokens, the padding after them: mask (N, L) to places (N, L)."""
    places = torch.arange(mask.shape[1], device=mask.device)
    keys = torch.rand(mask.shape, generator=rng, device=mask.device)
    return torch.where(mask.bool(), keys, 1 + places).argsort(dim=1)


def draw_swapped_order(mask: Tensor, rate: float, rng: torch.Generator | None = None) -> Tensor:
    """Where each token goes if a share `rate` of them step behind the next that stays: mask (N, L) to places (N, L).

    The first and the last token, the special ones, stay where they are.
    """
    places = torch.arange(mask.shape[1], device=mask.device)
    steps = torch.rand(mask.shape, generator=rng, device=mask.device) < rate
    steps &= (places > 0) & (places < mask.sum(1, keepdim=True) - 2)
    stays = torch.where(steps, mask.shape[1], places)
    next_that_stays = stays.flip(1).cummin(dim=1).values.flip(1)
    return _rank((next_that_stays + 0.5 * steps).argsort(dim=1, stable=True))


def draw_feature_order(embedded: Tensor, rng: torch.Generator | None = None) -> Tensor:
    """A random order of the columns, each sentence its own: (N, L, D) to columns (N, D)."""
    return torch.rand(embedded.shape[::2], generator=rng, device=embedded.device).argsort(dim=1)


def draw_span_start(mask: Tensor, rate: float, rng: torch.Generator | None = None) -> Tensor:
    """Where the span that is kept begins, each place that leaves room as likely: mask (N, L) to places (N,)."""
    choices = mask.sum(1) - _span_length(mask, rate) + 1
    return (torch.rand(len(mask), generator=rng, device=mask.device) * choices).long()


def shuffle_positions(positions: Tensor, order: Tensor) -> Tensor:
    """Each token at the position of the one that `order` (N, L) names in its place; positions (N, L)."""
    return positions.gather(1, order)


def cut_tokens(embedded: Tensor, mask: Tensor, order: Tensor, rate: float) -> Tensor:
    """The first int(rate * tokens) of `order` (N, L) at zero; embedded (N, L, D), mask (N, L)."""
    cut = (mask.sum(1).double() * rate).long()
    return embedded * (_rank(order) >= cut[:, None])[:, :, None]


def cut_features(embedded: Tensor, order: Tensor, rate: float) -> Tensor:
    """The first int(rate * D) columns of `order` (N, D) at zero in every token; embedded (N, L, D)."""
    return embedded * (_rank(order) >= int(rate * embedded.shape[2]))[:, None, :]


def keep_span(mask: Tensor, start: Tensor, rate: float) -> Tensor:
    """max(int(tokens * (1 - rate)), 1) neighbours from `start` (N,) on, the rest masked out; masks (N, L)."""
    places = torch.arange(mask.shape[1], device=mask.device)
    end = start + _span_length(mask, rate)
    return mask * ((places >= start[:, None]) & (places < end[:, None]))


def _span_length(mask: Tensor, rate: float) -> Tensor:
    return (mask.sum(1).double() * (1 - rate)).long().clamp(min=1)


def _rank(order: Tensor) -> Tensor:
    """Where in its row of `order` each index stands."""
    return order.argsort(dim=1)


@contextmanager
def embeddings_changed(encoder: Encoder, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """What the backbone's embedding layer puts out, (N, L, D), goes through `change` inside the block."""
    embeddings = getattr(encoder.backbone, "embeddings", None)
    if not isinstance(embeddings, nn.Module):
        raise _no_place(encoder, "embedding layer")
    hook = embeddings.register_forward_hook(lambda _layer, _inputs, embedded: change(embedded))
    try:
        with torch.compiler.set_stance("force_eager"):  # a compiled backbone overlooks the hooks of its layers
            yield
    finally:
        hook.remove()


def token_shuffling(
    encoder: Encoder,
    ids: Tensor,
    mask: Tensor,
    rate: float,  # noqa: ARG001 - it takes all tokens
    rng: torch.Generator | None,
) -> Tensor:
    """The position ids of all tokens, special ones included, in random order; the token ids stay."""
    return _at_places(encoder, ids, mask, draw_token_order(mask, rng))


def token_swapping(encoder: Encoder, ids: Tensor, mask: Tensor, rate: float, rng: torch.Generator | None) -> Tensor:
    """Neighbours in each other's place: EDA's random swap (Wei and Zou, EMNLP 2019), of neighbours alone.

    Far swaps tell which words stand in a sentence and no more; near ones leave most of its phrases whole.
    """
    return _at_places(encoder, ids, mask, draw_swapped_order(mask, rate, rng))


def _at_places(encoder: Encoder, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
    """Each token with the position id of one of `places` (N, L)."""
    if not _takes_positions(encoder):
        raise _no_place(encoder, "position ids")
    # Positions of RoBERTa and its kin begin after the padding id, which their embeddings keep under this name.
    first = getattr(getattr(encoder.backbone, "embeddings", None), "padding_idx", -1) + 1
    positions = torch.arange(first, first + mask.shape[1], device=mask.device).expand(mask.shape)
    pooled: Tensor = encoder(ids, mask, position_ids=shuffle_positions(positions, places))
    return pooled


def token_cutoff(encoder: Encoder, ids: Tensor, mask: Tensor, rate: float, rng: torch.Generator | None) -> Tensor:
    """Whole tokens of the embedding layer's output at zero."""
    order = draw_token_order(mask, rng)
    with embeddings_changed(encoder, lambda embedded: cut_tokens(embedded, mask, order, rate)):
        pooled: Tensor = encoder(ids, mask)
    return pooled


def feature_cutoff(encoder: Encoder, ids: Tensor, mask: Tensor, rate: float, rng: torch.Generator | None) -> Tensor:
    """Whole columns of the embedding layer's output at zero."""
    with embeddings_changed(encoder, lambda embedded: cut_features(embedded, draw_feature_order(embedded, rng), rate)):
        pooled: Tensor = encoder(ids, mask)
    return pooled


def span_cutoff(encoder: Encoder, ids: Tensor, mask: Tensor, rate: float, rng: torch.Generator | None) -> Tensor:
    """Attention, and a mean over tokens, see one contiguous span.

    ConSERT also writes zeros over the other ids. Here they stay, though nothing attends to them: [CLS] is there to be
    pooled, and RoBERTa, which counts the ids that are no padding, finds the span at its own positions.
    """
    pooled: Tensor = encoder(ids, keep_span(mask, draw_span_start(mask, rate, rng), rate))
    return pooled


AUGMENTATIONS: dict[str, Callable[[Encoder, Tensor, Tensor, float, torch.Generator | None], Tensor]] = {
    "token-shuffling": token_shuffling,
    "token-swapping": token_swapping,
    "token-cutoff": token_cutoff,
    "feature-cutoff": feature_cutoff,
    "span-cutoff": span_cutoff,
}

RATES = {
    "token-swapping": 0.15,  # ours, chosen by STS-B dev: docs/log.md
    "token-cutoff": 0.15,  # as ConSERT is quoted: none of its scripts sets one
    "feature-cutoff": 0.2,  # ConSERT's script for BERT-base
    "span-cutoff": 0.4,  # ours
}
"""The share of tokens or features that each takes away, or moves."""


@dataclass(frozen=True)
class Augmentation:
    """An encoder's pass with one of `AUGMENTATIONS`; what dropout the encoder has stays on."""

    name: str
    rate: float | None = None
    """None is that of `RATES`; shuffling has none."""

    def __post_init__(self) -> None:
        if self.name not in AUGMENTATIONS:
            raise ValueError(f"augmentation {self.name!r} is none of {', '.join(AUGMENTATIONS)}")
        if self.rate is not None and self.name not in RATES:
            raise ValueError(f"augmentation {self.name} has no rate: it takes all tokens")
        if self.rate is not None and not 0 <= self.rate < 1:
            raise ValueError(f"augmentation rate {self.rate} is not a share of at least 0 and below 1")

    def __call__(self, encoder: Encoder, ids: Tensor, mask: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Pooled vectors (N, D) of token ids and attention mask, each (N, L).

        Without `rng` it draws from torch's generator of the device, as dropout does: restore that, and both return.

        Raises:
            ValueError: the backbone has no place for it.
        """
        rate = RATES.get(self.name, 1.0) if self.rate is None else self.rate
        return AUGMENTATIONS[self.name](encoder, ids, mask, rate, rng)


def _takes_positions(encoder: Encoder) -> bool:
    return "position_ids" in inspect.signature(encoder.backbone.forward).parameters


def _no_place(encoder: Encoder, missing: str) -> ValueError:
    family = encoder.backbone.config.model_type
    possible = "token-shuffling, span-cutoff" if _takes_positions(encoder) else "span-cutoff"
    return ValueError(f"backbones of the family {family} have no {missing}: {possible} would work")
