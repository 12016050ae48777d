"""Model soups: averaged weights of encoders that were tuned from the same initial weights.

* "Model soups" (ICML 2022): the average of several tuned models is often better than the best single model, at the
  inference cost of one model. A uniform soup averages all models. A greedy soup averages only the models that help on
  held-out data.
* "Robust fine-tuning of zero-shot models" (CVPR 2022, WiSE-FT): a tuned model averaged with its initial model keeps
  more of the initial model's knowledge.
* "Editing models with task arithmetic" (ICLR 2023): the change from tuning can also be scaled by more than 1.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cached_property, reduce
from itertools import combinations
from pathlib import Path
from typing import Any, Self, TextIO

import torch
from torch import Tensor

from models.bundle.bundle import VOLATILE_CONFIG, Bundle, Manifest
from models.bundle.card import BULKY
from models.bundle.origin import merged
from models.bundle.sources import hub_id, manifest_of
from models.encoder.encoder import Encoder
from models.errors import Refused
from models.export.export import export
from training.checkpoints.publish import sts_manifest_scores
from training.evaluation.selection import Selection
from training.evaluation.sts import TaskScore
from training.machine.hardware import environment, pick_device

# Ingredients of a soup: their properties that must agree, and the average of their weights.

MIN_COSINE = 0.5
"""Minimum cosine between the weights of two encoders that have the same initial weights.

After 60 steps of training, the cosine between `minilm` and the trained encoder is 0.999998. Between two models that
were pre-trained from different random weights, it is within 0.1 of 0.
"""
ONE_START = "the encoders of a soup must be tuned from the same initial weights"

Shares = tuple[float, ...]
"""Shares of the ingredients, which sum to 1."""


class SoupError(Refused):
    """The encoders can't be averaged as requested. The message names the encoders and the reason."""


@dataclass(frozen=True)
class Ingredient:
    """An encoder whose weights a soup averages."""

    source: str
    encoder: Encoder
    manifest: Manifest | None
    """Manifest of a bundle or an adapter, after all hashes were verified."""

    @classmethod
    def load(cls, source: str, *, like: Encoder | None = None) -> Self:
        """Load an encoder by name or folder.

        If `like` is given, the pooling and maximum length of `like` replace those of the loaded encoder.

        Raises:
            SourceError, BundleError, AdapterError: the encoder does not exist, can't be read, or does not match its
                manifest.
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
        """Return the properties, by dotted names, that must be equal in two encoders before they can be averaged."""
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
        """Return the hub ids of the models from which the encoder was tuned, according to its model card."""
        return tuple(base for base in self.encoder.origin.base_models if base != hub_id(self.source))

    def cosine_to(self, other: Ingredient) -> float:
        """Compute the cosine between the weights of two encoders, in float64.

        Only weight matrices count. The matrices of an encoder are concatenated to one vector.
        """
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

    def check_compatible(self, other: Ingredient) -> None:
        """Check that the weights of the two encoders can be averaged.

        Raises:
            SoupError: this encoder has a transform, or the `facts` of the two encoders differ; the message names the
                transform or the first property that differs.
        """
        if self.encoder.transform is not None:
            raise SoupError(
                f"{self.source}: has a transform ({self.encoder.transform.kind}), which can't be averaged: "
                "make the soup from encoders without a transform, and fit the transform to the soup"
            )
        names = [name for name in {**other.facts, **self.facts} if self.facts.get(name) != other.facts.get(name)]
        if names:
            one, another = (each.facts.get(names[0], "not there") for each in (self, other))
            more = f" (and {len(names) - 1} more differences)" if names[1:] else ""
            raise SoupError(
                f"{self.source}: {names[0]} is {one}, but {another} in {other.source}{more}: {ONE_START} and have "
                "the same pooling"
            )


def check_one_start(ingredients: Sequence[Ingredient]) -> None:
    """Check that all ingredients were tuned from the same initial weights.

    The average of encoders with different initial weights is useless.

    Raises:
        SoupError: two ingredients have different initial weights, according to their cards or to their weights; the
            message names both.
    """
    for one, other in combinations(ingredients, 2):
        if one.starts and other.starts and {*one.starts}.isdisjoint(other.starts):
            theirs, ours = (", ".join(each.starts) for each in (other, one))
            raise SoupError(f"{other.source}: was tuned from {theirs}, but {one.source} from {ours}: {ONE_START}")
    first, *others = ingredients
    for each in others:
        if (likeness := each.cosine_to(first)) < MIN_COSINE:
            raise SoupError(
                f"{each.source}: has weights unrelated to those of {first.source} (cosine {likeness:.2f}): {ONE_START}"
            )


def averaged(ingredients: Sequence[Ingredient], shares: Shares) -> dict[str, Tensor]:
    """Return the averaged weights by name, with `shares` as factors. Averages are computed in float64.

    Integers such as positions stay unchanged. The weights are added in the order of their shares and digests, so the
    result does not depend on the order of the ingredients. The average of a single ingredient is bit-identical to the
    ingredient.
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
    """Yield a pair (dotted path, value) for each value in nested dictionaries and lists. Paths begin with `path`."""
    if not isinstance(value, dict | list):
        yield path, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, f"{path}.{key}" if path else str(key))


SOUPS = """\
@inproceedings{wortsman2022soups,
  title = {Model soups: averaging weights of multiple fine-tuned models improves accuracy without increasing inference
    time},
  author = {Wortsman, Mitchell and Ilharco, Gabriel and Gadre, Samir Ya and Roelofs, Rebecca and Gontijo-Lopes, Raphael
    and Morcos, Ari S. and Namkoong, Hongseok and Farhadi, Ali and Carmon, Yair and Kornblith, Simon and Schmidt,
    Ludwig},
  booktitle = {Proceedings of the 39th International Conference on Machine Learning},
  year = {2022},
  url = {https://proceedings.mlr.press/v162/wortsman22a.html}
}
"""
WISE_FT = """\
@inproceedings{wortsman2022robust,
  title = {Robust fine-tuning of zero-shot models},
  author = {Wortsman, Mitchell and Ilharco, Gabriel and Kim, Jong Wook and Li, Mike and Kornblith, Simon and Roelofs,
    Rebecca and Gontijo-Lopes, Raphael and Hajishirzi, Hannaneh and Farhadi, Ali and Namkoong, Hongseok and Schmidt,
    Ludwig},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2022},
  url = {https://arxiv.org/abs/2109.01903}
}
"""

TASK_ARITHMETIC = """\
@inproceedings{ilharco2023editing,
  title = {Editing models with task arithmetic},
  author = {Ilharco, Gabriel and Ribeiro, Marco Tulio and Wortsman, Mitchell and Schmidt, Ludwig and Hajishirzi,
    Hannaneh and Farhadi, Ali},
  booktitle = {The Eleventh International Conference on Learning Representations},
  year = {2023},
  url = {https://openreview.net/forum?id=6t0Kwf8-jrj}
}
"""

GRID = tuple(tenths / 10 for tenths in range(-10, 11))
"""Shares of the initial encoder that are tried if the recipe has no share.

A share of 0 gives the average of the tuned encoders, and a share of 1 gives the initial encoder. With -1, the distance
from the initial encoder is twice as large as with 0.
"""


@dataclass(frozen=True, kw_only=True)
class SoupRecipe:
    """The shares of the encoders in a soup, or the method that chooses them."""

    weights: tuple[float, ...] | None = None
    """Weights in the order of the encoders, with any sum. None means equal weights."""
    greedy: bool = False
    """True for a greedy soup: from best to worst, each encoder that does not lower the score on STS-B dev is added."""
    towards: str | None = None
    """Name or folder of the encoder that the ingredients were tuned from, if the soup includes it."""
    share: float | None = None
    """Share of the initial encoder `towards`.

    A share below 0 extrapolates away from the initial encoder, by task arithmetic. With None, STS-B dev selects from
    `GRID`.
    """

    def __post_init__(self) -> None:
        if self.weights is not None:
            if self.greedy:
                raise SoupError("weights: a greedy soup chooses its weights; leave out weights or greedy")
            if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights) or not sum(self.weights):
                raise SoupError(f"weights: {_listed(self.weights)} must all be at least 0, with a sum above 0")
            if math.isinf(sum(self.weights)):
                raise SoupError(f"weights: {_listed(self.weights)} are too large: their sum is infinite")
        if self.share is not None:
            if self.towards is None:
                raise SoupError("share: needs the initial encoder: name it with towards")
            if not GRID[0] <= self.share <= GRID[-1]:
                raise SoupError(f"share: {self.share} is not from {GRID[0]:g} to {GRID[-1]:g}")

    def shares(self, count: int) -> Shares:
        """Return the shares of `count` encoders: the recipe's weights, or else equal weights, scaled to a sum of 1.

        Raises:
            SoupError: the recipe has weights, but their number is not `count`.
        """
        weights = self.weights or (1.0,) * count
        if len(weights) != count:
            raise SoupError(f"weights: {_listed(weights)} are {len(weights)}, for {count} encoders")
        total = math.fsum(weights)
        return tuple(weight / total for weight in weights)

    def choose(self, count: int, score: Callable[[Shares], float]) -> Shares:
        """Return the shares of `count` encoders.

        If the recipe includes the initial encoder, the share of this encoder is appended. If the recipe leaves shares
        open, the function `score` is used to choose them. A higher score is better.
        """
        if self.towards is None:
            return greedy(count, score) if self.greedy else self.shares(count)
        shares = greedy(count, lambda tried: score((*tried, 0.0))) if self.greedy else self.shares(count)
        if self.share is not None:
            return with_start(shares, self.share)
        return max((with_start(shares, share) for share in sorted(GRID, key=abs)), key=score)


def greedy(count: int, score: Callable[[Shares], float]) -> Shares:
    """Return the shares of a greedy soup (recipe 1 of "Model soups").

    Encoders are tried from best to worst, and an encoder is added if the soup's score does not fall.
    """

    def among(chosen: Collection[int]) -> Shares:
        return tuple((i in chosen) / len(chosen) for i in range(count))

    ranked = sorted(range(count), key=lambda i: -score(among([i])))
    chosen = ranked[:1]
    for i in ranked[1:]:
        if score(among([*chosen, i])) >= score(among(chosen)):
            chosen.append(i)
    return among(chosen)


def with_start(shares: Shares, share: float) -> Shares:
    """Scale the shares of tuned encoders to a sum of 1 - `share`, and append the initial encoder's `share`.

    `share` is 1 - alpha of WiSE-FT and 1 - lambda of task arithmetic.
    """
    return (*(each * (1 - share) for each in shares), share)


class SoupSearch:
    """The search for the share of each ingredient in a soup.

    It has an encoder with the current average of the weights, and the scores of all averages tried so far.
    """

    def __init__(self, ingredients: Sequence[Ingredient], selection: Selection | None, stream: TextIO) -> None:
        self.encoder = deepcopy(ingredients[0].encoder).to(pick_device("auto"))
        self.tried: dict[Shares, float] = {}
        self._ingredients = ingredients
        self._selection = selection
        self._stream = stream

    def load(self, shares: Shares) -> Encoder:
        """Average the ingredients' weights by `shares`, load the average into `encoder`, and return `encoder`."""
        self.encoder.load_state_dict(averaged(self._ingredients, shares))
        return self.encoder

    def score(self, shares: Shares) -> float:
        """Return the score of the encoder whose weights are the ingredients' average with these shares.

        If the same shares were scored before, the encoder is not evaluated again.

        Raises:
            SoupError: there is no evaluation data.
        """
        if self._selection is None:
            raise SoupError(
                "STS-B dev selects the weights of a greedy soup and a missing share: name the data with --eval-data"
            )
        if shares not in self.tried:
            metric = self._selection.metric
            score = self.tried[shares] = self._selection.scores(self.load(shares).encode)[metric]
            print(f"{_format_shares(shares, self._ingredients)}: {metric} {score:.4f}", file=self._stream, flush=True)
        return self.tried[shares]


@dataclass(frozen=True)
class Soup:
    """A finished soup with its recipe and scores."""

    encoder: Encoder
    mixing: SoupRecipe
    ingredients: tuple[Ingredient, ...]
    """Encoders of the soup. The initial encoder is the last one if the soup includes it."""
    shares: Shares
    tried: Mapping[Shares, float]
    """Scores of all shares that were tried, and of the soup's own shares. The mapping is empty without a metric."""
    metric: str | None

    def __str__(self) -> str:
        said = f", {self.metric} {self.tried[self.shares]:.4f}" if self.metric else ""
        return _format_shares(self.shares, self.ingredients) + said

    def publish(self, folder: Path, scores: Mapping[str, TaskScore], recipe: Mapping[str, Any] | None = None) -> Bundle:
        """Export the soup as a bundle, with ingredients, recipe and scores in the manifest.

        Raises:
            ExportError, BundleError, OSError: see `models.export.export`.
        """
        made = [each.manifest for each in self.ingredients if each.manifest]
        objectives = {manifest.objective for manifest in made} - {None}
        citations = [SOUPS] if sum(map(bool, self.shares)) > 1 else []
        if self.mixing.towards is not None:
            citations.append(TASK_ARITHMETIC if self.shares[-1] < 0 else WISE_FT)
        dev = {self.metric: self.tried[self.shares]} if self.metric else {}
        return export(
            self.encoder,
            folder,
            name=folder.resolve().name,
            backbone=made[0].backbone if made else self.ingredients[0].source,
            objective=objectives.pop() if len(objectives) == 1 else None,
            run={
                **({"recipe": recipe} if recipe else {}),
                "soup": asdict(self.mixing),
                "ingredients": [
                    {**each.to_json(), "share": share}
                    for each, share in zip(self.ingredients, self.shares, strict=True)
                ],
                "metric": self.metric,
                "tried": [{"shares": [*shares], "score": score} for shares, score in self.tried.items()],
                "environment": environment(),
            },
            scores={**dev, **sts_manifest_scores(scores)},
            citations=citations,
        )


def make_soup(sources: Sequence[str], mixing: SoupRecipe, selection: Selection | None, stream: TextIO) -> Soup:
    """Average the weights of the named encoders, and return the averaged encoder, the soup.

    All encoders are in memory at the same time. If `mixing` does not fix each encoder's share of the average, the
    shares are chosen by the scores of `selection`. Scores are reported to `stream`.

    Raises:
        SoupError: `mixing` has weights, but not one for each encoder; the encoders can't be averaged or have different
            initial weights; or `mixing` does not fix all shares and `selection` is None.
        SourceError, BundleError, AdapterError: an encoder can't be read.
    """
    mixing.shares(len(sources))  # This call reports errors in the weights before any encoder is loaded.
    ingredients = _load_ingredients(sources, mixing)
    for each in ingredients:
        each.check_compatible(ingredients[0])
    check_one_start(ingredients)
    pot = SoupSearch(ingredients, selection, stream)
    shares = mixing.choose(len(sources), pot.score)
    if selection:
        pot.score(shares)
    encoder = pot.load(shares).eval().cpu()
    encoder.origin = merged([each.encoder.origin for each in ingredients])
    return Soup(encoder, mixing, tuple(ingredients), shares, pot.tried, selection.metric if selection else None)


def is_soup(manifest: Manifest, sources: Sequence[str], mixing: SoupRecipe) -> bool:
    """Return whether the bundle with this manifest is the soup of the encoders `sources` by the recipe `mixing`.

    The result is False if an encoder has changed since the soup was made.

    Raises:
        SourceError, BundleError, AdapterError: an encoder can't be read.
    """
    run = manifest.run or {}
    if run.get("soup") != json.loads(json.dumps(asdict(mixing))):
        return False
    there = [{key: value for key, value in each.items() if key != "share"} for each in run.get("ingredients") or ()]
    return there == [each.to_json() for each in _load_ingredients(sources, mixing)]


def _load_ingredients(sources: Sequence[str], mixing: SoupRecipe) -> list[Ingredient]:
    """Load the ingredients. If the soup includes the initial encoder, this encoder is the last ingredient."""
    ingredients = [Ingredient.load(source) for source in sources]
    if mixing.towards is not None:
        ingredients.append(Ingredient.load(mixing.towards, like=ingredients[0].encoder))
    return ingredients


def _format_shares(shares: Shares, ingredients: Sequence[Ingredient]) -> str:
    """Return a text with the encoders whose share is not 0, and their shares."""
    return " + ".join(f"{share:.3g} {each.source}" for share, each in zip(shares, ingredients, strict=True) if share)


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
