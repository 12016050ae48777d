"""Ingredients of a soup: their common properties, and the average of their weights."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations
from typing import Any, Self

import torch
from torch import Tensor

from models.bundle.bundle import VOLATILE_CONFIG, Manifest
from models.bundle.card import BULKY
from models.bundle.sources import hub_id, manifest_of
from models.encoder.encoder import Encoder
from models.errors import Refused

LEAST_LIKENESS = 0.5
"""Minimum cosine of weights that started alike.

After 60 steps `minilm` has 0.999998 with itself. Two models pre-trained from different random weights are within 0.1 of
0.
"""
OF_ONE_START = "a soup is of encoders that were tuned from one start"

Shares = tuple[float, ...]
"""Share of each ingredient. The sum is 1."""


class SoupError(Refused):
    """The encoders can't be averaged, or not as requested. The message names them and the reason."""


@dataclass(frozen=True)
class Ingredient:
    """An encoder of a soup."""

    source: str
    encoder: Encoder
    manifest: Manifest | None
    """Manifest of a bundle or an adapter, with every hash verified."""

    @classmethod
    def load(cls, source: str, *, like: Encoder | None = None) -> Self:
        """Load an encoder by name or folder, with its own pooling and length or those of `like`.

        Raises:
            SourceError, BundleError: there is none, or its files do not match its manifest.
        """
        found = manifest_of(source)
        pooling, max_length = (like.pooling, like.max_length) if like else (None, None)
        return cls(source, Encoder.load(source, pooling=pooling, max_length=max_length), found)

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256, in hex, of the names and bytes of all weights."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.encoder.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy())
        return digest.hexdigest()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Return the properties, by dotted names, that encoders must share for their weights to be compatible."""
        config = self.encoder.backbone.config.to_dict()
        tokenizer = json.loads(self.encoder.hub_tokenizer.backend_tokenizer.to_str())
        described = {
            "pooling": self.encoder.pooling,
            "max_length": self.encoder.max_length,
            "prompts": self.encoder.prompts,
            "architecture": {key: value for key, value in config.items() if key not in VOLATILE_CONFIG},
            "tokenizer": {key: value for key, value in tokenizer.items() if key not in ("truncation", "padding")},
            "weights": {
                name: f"{tensor.dtype} {[*tensor.shape]}" if tensor.is_floating_point() else tensor.tolist()
                for name, tensor in self.encoder.state_dict().items()
            },
        }
        return dict(_leaves(described))

    @property
    def starts(self) -> tuple[str, ...]:
        """Return the hub ids of the models that it was tuned from, according to its card."""
        return tuple(base for base in self.encoder.origin.base_models if base != hub_id(self.source))

    def likeness(self, other: Ingredient) -> float:
        """Compute the cosine, in float64, between the concatenated matrices of the two encoders."""
        mine, theirs = (each.encoder.state_dict() for each in (self, other))
        names = [name for name, weights in mine.items() if weights.ndim > 1 and weights.is_floating_point()]
        dot, own, others = (
            math.fsum(torch.sum(one[name].double() * two[name].double()).item() for name in names)
            for one, two in ((mine, theirs), (mine, mine), (theirs, theirs))
        )
        return dot / math.sqrt(own * others)

    def to_json(self) -> dict[str, Any]:
        """Return the ingredient's identity and origin for a manifest."""
        made = self.manifest
        return {
            "source": self.source,
            "name": made and made.name,
            "fingerprint": made and made.fingerprint,
            "weights": self.digest,
            "objective": made and made.objective,
            "run": {key: value for key, value in ((made and made.run) or {}).items() if key not in BULKY} or None,
        }

    def check_like(self, other: Ingredient) -> None:
        """Check that the two can be averaged.

        Raises:
            SoupError: they can't; the message names the difference.
        """
        if self.encoder.transform is not None:
            raise SoupError(
                f"{self.source}: has a transform ({self.encoder.transform.kind}), which can't be averaged: "
                "make the soup of encoders without one and fit it to the soup"
            )
        names = [name for name in {**other.facts, **self.facts} if self.facts.get(name) != other.facts.get(name)]
        if names:
            one, another = (each.facts.get(names[0], "not there") for each in (self, other))
            more = f" (and {len(names) - 1} more differences)" if names[1:] else ""
            raise SoupError(
                f"{self.source}: {names[0]} is {one}, but {another} in {other.source}{more}: "
                f"{OF_ONE_START}, pooled alike"
            )


def check_one_start(ingredients: Sequence[Ingredient]) -> None:
    """Check that all ingredients started from the same weights.

    Otherwise their average has no meaning.

    Raises:
        SoupError: two of them started differently, by their cards or by the weights; the message names both.
    """
    for one, other in combinations(ingredients, 2):
        if one.starts and other.starts and {*one.starts}.isdisjoint(other.starts):
            theirs, ours = (", ".join(each.starts) for each in (other, one))
            raise SoupError(f"{other.source}: was tuned from {theirs}, but {one.source} from {ours}: {OF_ONE_START}")
    first, *others = ingredients
    for each in others:
        if (likeness := each.likeness(first)) < LEAST_LIKENESS:
            raise SoupError(
                f"{each.source}: has weights that are nothing like those of {first.source} (cosine {likeness:.2f}): "
                f"{OF_ONE_START}"
            )


def averaged(ingredients: Sequence[Ingredient], shares: Shares) -> dict[str, Tensor]:
    """Compute the weighted mean of every weight in float64.

    Integers such as positions stay unchanged.

    The result does not depend on the order of the ingredients, because sums follow shares and digests. A single
    ingredient keeps every bit.
    """
    taken = sorted(
        ((share, each) for share, each in zip(shares, ingredients, strict=True) if share),
        key=lambda part: (part[0], part[1].digest),
    )
    states = [(share, each.encoder.state_dict()) for share, each in taken]
    return {name: _averaged(name, states) for name in states[0][1]}


def _averaged(name: str, states: Sequence[tuple[float, Mapping[str, Tensor]]]) -> Tensor:
    one = states[0][1][name]
    if not one.is_floating_point():
        return one
    return reduce(Tensor.add_, (tensors[name].double() * share for share, tensors in states)).to(one.dtype)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested dictionaries and lists, with their dotted paths."""
    if not isinstance(value, dict | list):
        yield path, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, f"{path}.{key}" if path else str(key))
