"""Laws that hold for every objective of the table, and for every ablation of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from training.objectives import OBJECTIVES
from training.objectives.base import Objective, Views
from training.objectives.contrastive import cosine_logits, info_nce

DIM = 12
Array = NDArray[np.float64]


def variants() -> list[Any]:
    """(objective, its parameters) of the table: as published first, then each ablation."""
    found = []
    for name, recipe in OBJECTIVES.items():
        published = next(iter(recipe.presets.values())).params
        found.append(pytest.param(name, published, id=name))
        found += [
            pytest.param(name, replace(published, **changes), id=f"{name}+{ablation}")
            for ablation, changes in recipe.ablations.items()
        ]
    return found


every_variant = pytest.mark.parametrize(("name", "params"), variants())


def build(name: str, params: Any) -> Objective:
    torch.manual_seed(0)
    return OBJECTIVES[name].build(params, DIM)


def views_for(objective: Objective, n: int, *, seed: int = 0, scale: float = 1.0) -> Views:
    """Random views of n sentences: what `objective` needs, each with gradient."""
    needs, rng = objective.needs, torch.Generator().manual_seed(seed)
    base = torch.randn(n, DIM, generator=rng)

    def near() -> torch.Tensor:
        return (scale * (base + 0.3 * torch.randn(n, DIM, generator=rng))).requires_grad_()

    return Views(
        noisy=(scale * (base + 0.3 * torch.randn(needs.views, n, DIM, generator=rng))).requires_grad_(),
        clean=near() if needs.clean else None,
        teacher=near() if needs.teacher else None,
    )


def terms_of(objective: Objective, views: Views, *, seed: int = 0) -> dict[str, float]:
    terms = objective(views, torch.Generator().manual_seed(seed))
    return {term: value.item() for term, value in terms.items()}


@every_variant
@given(n=st.integers(1, 9), seed=st.integers(0, 99), scale=st.sampled_from([0.0, 1e-6, 1.0, 1e4]))
@settings(max_examples=25)
def test_terms_are_finite_on_any_finite_input(name: str, params: Any, n: int, seed: int, scale: float) -> None:
    objective = build(name, params)
    views = views_for(objective, n, seed=seed, scale=scale)
    terms = objective(views, torch.Generator())
    assert terms
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    assert all(value.ndim == 0 and torch.isfinite(value) for value in terms.values())
    assert views.noisy.grad is not None and torch.isfinite(views.noisy.grad).all()


@every_variant
def test_same_seed_same_value(name: str, params: Any) -> None:
    objective = build(name, params)
    views = views_for(objective, 6)
    assert terms_of(objective, views, seed=3) == terms_of(objective, views, seed=3)


@every_variant
@given(order=st.permutations(range(7)))
@settings(max_examples=20)
def test_the_order_of_sentences_does_not_matter(name: str, params: Any, order: list[int]) -> None:
    objective = build(name, params)
    views = views_for(objective, 7)
    moved = Views(
        noisy=views.noisy[:, order],
        clean=None if views.clean is None else views.clean[order],
        teacher=None if views.teacher is None else views.teacher[order],
    )
    assert terms_of(objective, moved) == pytest.approx(terms_of(objective, views), rel=1e-5, abs=1e-6)


@every_variant
def test_gradient_reaches_every_row_of_every_view_and_not_the_teacher(name: str, params: Any) -> None:
    objective = build(name, params)
    views = views_for(objective, 6)
    torch.stack(list(objective(views, torch.Generator()).values())).sum().backward()  # type: ignore[no-untyped-call]
    assert views.noisy.grad is not None and (views.noisy.grad.abs().sum(dim=2) > 0).all()
    if views.clean is not None:
        assert views.clean.grad is not None and (views.clean.grad.abs().sum(dim=1) > 0).all()
    assert views.teacher is None or views.teacher.grad is None


@every_variant
def test_a_batch_of_one_sentence_gives_a_number(name: str, params: Any) -> None:
    objective = build(name, params)
    assert all(map(math.isfinite, terms_of(objective, views_for(objective, 1)).values()))


@every_variant
def test_terms_stay_float32_under_autocast(name: str, params: Any) -> None:
    objective = build(name, params)
    views = views_for(objective, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = objective(views, torch.Generator())
    assert all(value.dtype == torch.float32 for value in narrow.values())
    wide = terms_of(objective, views)
    assert {term: value.item() for term, value in narrow.items()} == pytest.approx(wide, rel=0.05, abs=0.02)


@every_variant
def test_equals_a_slow_float64_oracle(name: str, params: Any) -> None:
    objective = build(name, params)
    views = views_for(objective, 7)
    weights = {key: value.double().numpy() for key, value in objective.state_dict().items()}
    expected = ORACLES[name](views.noisy.detach().double().numpy(), params, weights)
    assert terms_of(objective, views) == pytest.approx(expected, rel=1e-4)


def cosine(a: Array, b: Array) -> float:
    return float(a @ b) / max(math.sqrt(a @ a), 1e-8) / max(math.sqrt(b @ b), 1e-8)


def simcse_oracle(noisy: Array, params: Any, weights: dict[str, Array]) -> dict[str, float]:
    """The equation of the paper, a sentence at a time."""

    def head(x: Array) -> Array:
        return np.tanh(weights["head.0.weight"] @ x + weights["head.0.bias"]) if params.head else x

    n = noisy.shape[1]
    total = 0.0
    for i in range(n):
        anchor = head(noisy[0, i])
        similarities = [cosine(anchor, head(noisy[1, j])) / params.temperature for j in range(n)]
        total += -math.log(math.exp(similarities[i]) / sum(math.exp(s) for s in similarities))
    return {"info_nce": total / n}


ORACLES: dict[str, Callable[[Array, Any, dict[str, Array]], dict[str, float]]] = {"simcse": simcse_oracle}


def test_every_objective_has_an_oracle() -> None:
    assert ORACLES.keys() == OBJECTIVES.keys()


def test_logits_and_loss_are_those_of_float32_whatever_autocast_says() -> None:
    a, b = torch.randn(2, 5, DIM)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = info_nce(cosine_logits(a, b, 0.05))
    assert inside.dtype == torch.float32
    assert torch.equal(inside, info_nce(cosine_logits(a, b, 0.05)))
    assert cosine_logits(a.bfloat16(), b.bfloat16(), 0.05).dtype == torch.float32
    assert cosine_logits(a.double(), b.double(), 0.05).dtype == torch.float64


def test_published_values() -> None:
    presets = OBJECTIVES["simcse"].presets
    assert {name: (p.batch_size, p.learning_rate) for name, p in presets.items() if name != "minilm"} == {
        "bert-base-uncased": (64, 3e-5),
        "bert-large-uncased": (64, 1e-5),
        "roberta-base": (512, 1e-5),
        "roberta-large": (512, 3e-5),
    }
    assert all(preset.params.temperature == 0.05 and preset.epochs == 1 for preset in presets.values())
    assert all(preset.source for recipe in OBJECTIVES.values() for preset in recipe.presets.values())


def test_the_head_begins_as_berts_does() -> None:
    torch.manual_seed(0)
    recipe = OBJECTIVES["simcse"]
    weights = recipe.build(recipe.presets["minilm"].params, 256).state_dict()
    assert float(weights["head.0.weight"].std()) == pytest.approx(0.02, rel=0.02)
    assert not weights["head.0.bias"].any()


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature 0"):
        replace(OBJECTIVES["simcse"].presets["minilm"].params, temperature=0.0)
