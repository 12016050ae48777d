"""Model soups: averaged weights of encoders that were tuned from the same start.

"Model soups" (ICML 2022): the average of several tuned models is often better than the best of them and costs no more
than one. It is of all models (uniform) or of those that help on held-out data (greedy). "Robust fine-tuning of
zero-shot models" (CVPR 2022, WiSE-FT): a tuned model averaged with the start keeps more of the start's knowledge.
"Editing models with task arithmetic" (ICLR 2023): the change from tuning can also be scaled by more than 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from models.bundle.bundle import Bundle, Manifest
from models.bundle.origin import merged
from models.encoder.encoder import Encoder
from models.export.export import export
from training.evaluation.sts import TaskScore
from training.machine.environment import environment
from training.machine.hardware import pick_device
from training.publish import spearman
from training.selection import Selection
from training.soups.ingredients import Ingredient, Shares, SoupError, averaged, check_one_start

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
"""Shares of the start to try if none is given.

0 is the soup and 1 the start. -1 is twice as far from the start as the soup.
"""


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """The weights of the encoders, and their choice."""

    weights: tuple[float, ...] | None = None
    """Weights in the order of the encoders, with any sum. None means equal weights."""
    greedy: bool = False
    """True to add only encoders that do not lower STS-B dev, best first."""
    towards: str | None = None
    """Name or folder of the encoder that the ingredients were tuned from, if it is averaged too."""
    share: float | None = None
    """Share of that encoder.

    Below 0 the soup extrapolates away from the start, by task arithmetic. None chooses from `GRID` by STS-B dev.
    """

    def __post_init__(self) -> None:
        if self.weights is not None:
            if self.greedy:
                raise SoupError("weights: greedy chooses them; leave one of the two out")
            if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights) or not sum(self.weights):
                raise SoupError(f"weights: {_listed(self.weights)} are not 0 or more each and above 0 together")
            if math.isinf(sum(self.weights)):
                raise SoupError(f"weights: {_listed(self.weights)} are too large to be added")
        if self.share is not None:
            if self.towards is None:
                raise SoupError("share: of which encoder? name it by towards")
            if not GRID[0] <= self.share <= GRID[-1]:
                raise SoupError(f"share: {self.share} is not from {GRID[0]:g} to {GRID[-1]:g}")

    def shares(self, count: int) -> Shares:
        """Normalise the weights of `count` encoders.

        Raises:
            SoupError: the number of weights differs.
        """
        weights = self.weights or (1.0,) * count
        if len(weights) != count:
            raise SoupError(f"weights: {_listed(weights)} are {len(weights)}, for {count} encoders")
        total = math.fsum(weights)
        return tuple(weight / total for weight in weights)

    def choose(self, count: int, score: Callable[[Shares], float]) -> Shares:
        """Choose the shares of `count` encoders and, last, of the start if it is averaged.

        `score` decides open choices.
        """
        if self.towards is None:
            return greedy(count, score) if self.greedy else self.shares(count)
        shares = greedy(count, lambda tried: score((*tried, 0.0))) if self.greedy else self.shares(count)
        if self.share is not None:
            return with_start(shares, self.share)
        return max((with_start(shares, share) for share in sorted(GRID, key=abs)), key=score)


def greedy(count: int, score: Callable[[Shares], float]) -> Shares:
    """Select as in recipe 1 of "Model soups": from the best downwards, an encoder stays if the score does not fall."""

    def among(chosen: Collection[int]) -> Shares:
        return tuple((i in chosen) / len(chosen) for i in range(count))

    ranked = sorted(range(count), key=lambda i: -score(among([i])))
    chosen = ranked[:1]
    for i in ranked[1:]:
        if score(among([*chosen, i])) >= score(among(chosen)):
            chosen.append(i)
    return among(chosen)


def with_start(shares: Shares, share: float) -> Shares:
    """Append the start's share, and scale the others so that the sum stays 1.

    `share` is 1 - alpha of WiSE-FT and 1 - lambda of task arithmetic.
    """
    return (*(each * (1 - share) for each in shares), share)


class Pot:
    """An encoder that holds the current average, and the scores of averages tried so far."""

    def __init__(self, ingredients: Sequence[Ingredient], selection: Selection | None, stream: TextIO) -> None:
        self.encoder = deepcopy(ingredients[0].encoder).to(pick_device("auto"))
        self.tried: dict[Shares, float] = {}
        self._ingredients = ingredients
        self._selection = selection
        self._stream = stream

    def fill(self, shares: Shares) -> Encoder:
        """Load the average into the encoder."""
        self.encoder.load_state_dict(averaged(self._ingredients, shares))
        return self.encoder

    def score(self, shares: Shares) -> float:
        """Score the average.

        Each is evaluated once.

        Raises:
            SoupError: there is no data to evaluate on.
        """
        if self._selection is None:
            raise SoupError(
                "greedy, and a share that is not given, are chosen by STS-B dev: name the data, --eval-data"
            )
        if shares not in self.tried:
            metric = self._selection.metric
            score = self.tried[shares] = self._selection.scores(self.fill(shares).encode)[metric]
            print(f"{_described(shares, self._ingredients)}: {metric} {score:.4f}", file=self._stream, flush=True)
        return self.tried[shares]


@dataclass(frozen=True)
class Soup:
    """A finished soup with its recipe and scores."""

    encoder: Encoder
    mixing: Mixing
    ingredients: tuple[Ingredient, ...]
    """Ingredients. The start is last, if it is averaged."""
    shares: Shares
    tried: Mapping[Shares, float]
    """Scores of the tried shares, the soup's own included if there was a metric."""
    metric: str | None

    def __str__(self) -> str:
        said = f", {self.metric} {self.tried[self.shares]:.4f}" if self.metric else ""
        return _described(self.shares, self.ingredients) + said

    @property
    def _of_the_start(self) -> list[str]:
        """Return the citation for adding or subtracting the start."""
        if self.mixing.towards is None:
            return []
        return [TASK_ARITHMETIC if self.shares[-1] < 0 else WISE_FT]

    def publish(self, folder: Path, scores: Mapping[str, TaskScore], recipe: Mapping[str, Any] | None = None) -> Bundle:
        """Export the soup as a bundle, with ingredients, recipe and scores in the manifest.

        Raises:
            ExportError, BundleError, OSError: see `models.export.export`.
        """
        made = [each.manifest for each in self.ingredients if each.manifest]
        objectives = {manifest.objective for manifest in made} - {None}
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
            scores={**dev, **spearman(scores)},
            citations=[*([SOUPS] if sum(map(bool, self.shares)) > 1 else []), *self._of_the_start],
        )


def cook(sources: Sequence[str], mixing: Mixing, selection: Selection | None, stream: TextIO) -> Soup:
    """Make the soup of the named encoders.

    All are in memory at once.

    `selection` makes the choices that `mixing` leaves open. Scores are reported to `stream`.

    Raises:
        SoupError: they can't be averaged, started differently, or there is no data for the choice.
        SourceError, BundleError: one can't be read.
    """
    mixing.shares(len(sources))  # This call reports errors in the weights before any encoder is loaded.
    ingredients = _gathered(sources, mixing)
    for each in ingredients:
        each.check_like(ingredients[0])
    check_one_start(ingredients)
    pot = Pot(ingredients, selection, stream)
    shares = mixing.choose(len(sources), pot.score)
    if selection:
        pot.score(shares)
    encoder = pot.fill(shares).eval().cpu()
    encoder.origin = merged([each.encoder.origin for each in ingredients])
    return Soup(encoder, mixing, tuple(ingredients), shares, pot.tried, selection.metric if selection else None)


def is_soup(manifest: Manifest, sources: Sequence[str], mixing: Mixing) -> bool:
    """Return whether a bundle is the soup of the named encoders in their current state, with this mixing.

    Raises:
        SourceError, BundleError: one can't be read.
    """
    run = manifest.run or {}
    if run.get("soup") != json.loads(json.dumps(asdict(mixing))):
        return False
    there = [{key: value for key, value in each.items() if key != "share"} for each in run.get("ingredients") or ()]
    return there == [each.to_json() for each in _gathered(sources, mixing)]


def _gathered(sources: Sequence[str], mixing: Mixing) -> list[Ingredient]:
    """Load the ingredients. If the starting encoder is averaged too, it comes last."""
    ingredients = [Ingredient.load(source) for source in sources]
    if mixing.towards is not None:
        ingredients.append(Ingredient.load(mixing.towards, like=ingredients[0].encoder))
    return ingredients


def _described(shares: Shares, ingredients: Sequence[Ingredient]) -> str:
    """Format the encoders with their shares."""
    return " + ".join(f"{share:.3g} {each.source}" for share, each in zip(shares, ingredients, strict=True) if share)


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
