"""Encoders whose weights are averaged: what they must have in common, and the average."""

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

from models.bundle import VOLATILE_CONFIG, Manifest
from models.card import BULKY
from models.encoder import Encoder
from models.errors import Refused
from models.sources import hub_id, manifest_of

LEAST_LIKENESS = 0.5
"""Of encoders that began alike. After 60 steps `minilm` is at 0.999998 of itself; two models that were pre-trained
from random numbers of their own are within 0.1 of 0."""
OF_ONE_START = "a soup is of encoders that were tuned from one start"

Shares = tuple[float, ...]
"""Of each ingredient, 1 together."""


class SoupError(Refused):
    """Encoders that can't be averaged, or not as asked for; the message names which and why."""


@dataclass(frozen=True)
class Ingredient:
    """An encoder that goes in."""

    source: str
    encoder: Encoder
    manifest: Manifest | None
    """Of a bundle or an adapter, every hash verified."""

    @classmethod
    def load(cls, source: str, *, like: Encoder | None = None) -> Self:
        """From any name or folder of an encoder, with pooling and length of its own or those of `like`.

        Raises:
            SourceError, BundleError: there is none, or its files are not those of its manifest.
        """
        found = manifest_of(source)
        pooling, max_length = (like.pooling, like.max_length) if like else (None, None)
        return cls(source, Encoder.load(source, pooling=pooling, max_length=max_length), found)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of the names and bytes of all weights."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.encoder.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy())
        return digest.hexdigest()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """All that encoders must have in common for their weights to mean the same, by names with dots."""
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
        """The ids on the hub of what it was tuned from, as its card says; none where nobody said."""
        return tuple(base for base in self.encoder.origin.base_models if base != hub_id(self.source))

    def likeness(self, other: Ingredient) -> float:
        """The cosine of all their matrices, each encoder's taken as one vector; in float64."""
        mine, theirs = (each.encoder.state_dict() for each in (self, other))
        names = [name for name, weights in mine.items() if weights.ndim > 1 and weights.is_floating_point()]
        dot, own, others = (
            math.fsum(torch.sum(one[name].double() * two[name].double()).item() for name in names)
            for one, two in ((mine, theirs), (mine, mine), (theirs, theirs))
        )
        return dot / math.sqrt(own * others)

    def to_json(self) -> dict[str, Any]:
        """What a manifest says of it: which one it is, and how it came about."""
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
        """Raises `SoupError` if the two can't be averaged; it names what differs and how."""
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
    """Weights that did not begin alike have no meaningful average, however alike their shapes are.

    Raises:
        SoupError: two of them began otherwise, by their cards or by the weights themselves; it names both.
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
    """The mean of every weight by the shares, in float64; what is no floating number (positions) stays as it is.

    The order of the ingredients changes no bit, for sums are in the order of shares and digests; one alone stays
    itself to the bit.
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
    """Whatever is in nested dictionaries and lists, by its keys and places with dots between."""
    if not isinstance(value, dict | list):
        yield path, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, f"{path}.{key}" if path else str(key))
