"""Laws that hold for every objective of the table, and for every ablation of it."""

from __future__ import annotations

import importlib
import math
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.training.oracles.arrays import Oracle, ViewArrays
from training.objectives import OBJECTIVES
from training.objectives.base import Views
from training.objectives.contrastive import cosine_logits, info_nce

DIM = 12

NOISE_OF_ITS_OWN = ("imsimcse+positives-plus-noise", "imsimcse+negatives-plus-noise")
"""Here each sentence has noise of its own: elsewhere in the batch it meets another draw, and another loss."""


def published(name: str) -> Any:
    """The parameters of an objective's first preset."""
    return next(iter(OBJECTIVES[name].presets.values())).params


def variants(*, but: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """(objective, its parameters) of the table: as published first, then each ablation."""
    found = {}
    for name, recipe in OBJECTIVES.items():
        found[name] = (name, published(name))
        for ablation, changes in recipe.ablations.items():
            found[f"{name}+{ablation}"] = (name, replace(published(name), **changes))
    kept = [pytest.param(*variant, id=label) for label, variant in found.items() if label not in but]
    return pytest.mark.parametrize(("name", "params"), kept)


every_variant = variants()


def width(params: Any) -> int:
    """D: any, but where it falls into groups two for each of them."""
    return 2 * params.groups if "group" in getattr(params, "whitening", "none") else DIM


@cache
def _built(name: str, params: Any) -> nn.Module:
    torch.manual_seed(0)
    return cast(nn.Module, OBJECTIVES[name].build(params, width(params)))


def build(name: str, params: Any) -> Any:
    """An objective with its first weights and statistics."""
    return deepcopy(_built(name, params))


def views_for(objective: Any, n: int, *, seed: int = 0, scale: float = 1.0) -> Views:
    """Random views of n sentences, somewhat alike: what `objective` needs, each with gradient."""
    needs, rng = objective.needs, torch.Generator().manual_seed(seed)
    base = 1 + torch.randn(n, width(objective.params), generator=rng)

    def near(*views: int) -> torch.Tensor:
        return (scale * (base + 0.3 * torch.randn(*views, *base.shape, generator=rng))).requires_grad_()

    return Views(
        noisy=near(needs.views),
        clean=near() if needs.clean else None,
        teacher=near() if needs.teacher else None,
    )


def double(views: Views) -> Views:
    clean, teacher = (None if x is None else x.double() for x in (views.clean, views.teacher))
    return Views(views.noisy.double(), clean, teacher)


def terms_of(objective: Any, views: Views, *, seed: int = 0) -> dict[str, float]:
    """The terms of a first call: statistics that move with each call stay where they were."""
    terms = deepcopy(objective)(views, torch.Generator().manual_seed(seed))
    return {term: value.item() for term, value in terms.items()}


def backward(objective: Any, views: Views) -> None:
    torch.stack(list(objective(views, torch.Generator()).values())).sum().backward()  # type: ignore[no-untyped-call]


@every_variant
@given(n=st.integers(1, 9), seed=st.integers(0, 99), scale=st.sampled_from([0.0, 1e-6, 1.0, 1e4]))
@settings(max_examples=settings().max_examples // 4)
def test_terms_are_finite_on_any_finite_input(name: str, params: Any, n: int, seed: int, scale: float) -> None:
    objective = build(name, params)
    views = views_for(objective, n, seed=seed, scale=scale)
    terms = terms_of(objective, views)
    assert terms and all(map(math.isfinite, terms.values()))
    backward(objective, views)
    assert views.noisy.grad is not None and torch.isfinite(views.noisy.grad).all()
    assert all(weight.grad is None or torch.isfinite(weight.grad).all() for weight in objective.parameters())


@every_variant
def test_same_seed_same_value(name: str, params: Any) -> None:
    objective = build(name, params)
    views = views_for(objective, 6)
    assert terms_of(objective, views, seed=3) == terms_of(objective, views, seed=3)


@variants(but=NOISE_OF_ITS_OWN)
@given(order=st.permutations(range(7)))
@settings(max_examples=settings().max_examples // 5)
def test_the_order_of_sentences_does_not_matter(name: str, params: Any, order: list[int]) -> None:
    objective = build(name, params).double()  # in float32 the axes of near eigenvalues are undecided
    views = double(views_for(objective, 7))
    moved = Views(
        noisy=views.noisy[:, order],
        clean=None if views.clean is None else views.clean[order],
        teacher=None if views.teacher is None else views.teacher[order],
    )
    assert terms_of(objective, moved) == pytest.approx(terms_of(objective, views), rel=1e-7, abs=1e-9)


@every_variant
def test_gradient_reaches_every_row_of_every_view_and_not_the_teacher(name: str, params: Any) -> None:
    objective = build(name, params)
    views = views_for(objective, 6)
    backward(objective, views)
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
        narrow = deepcopy(objective)(views, torch.Generator().manual_seed(0))
    assert all(value.dtype == torch.float32 for value in narrow.values())
    wide = terms_of(objective, views)
    assert {term: value.item() for term, value in narrow.items()} == pytest.approx(wide, rel=0.05, abs=0.02)


@every_variant
def test_equals_a_slow_float64_oracle(name: str, params: Any) -> None:
    objective = build(name, params)
    views = views_for(objective, 7)
    weights = {key: value.double().numpy() for key, value in objective.state_dict().items()}
    oracle = cast(Oracle, importlib.import_module(f"tests.training.oracles.{name.replace('-', '_')}").oracle)
    expected = oracle(ViewArrays.of(views), params, weights, torch.Generator().manual_seed(0))
    assert terms_of(objective, views) == pytest.approx(expected, rel=1e-4)
    assert terms_of(objective.double(), double(views)) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_switched_off_it_is_simcse(name: str) -> None:
    off = build(name, replace(published(name), **OBJECTIVES[name].off))
    views = views_for(off, 7)
    torch.manual_seed(0)
    simcse: Any = OBJECTIVES["simcse"].build(published("simcse"), views.noisy.shape[2])
    off.load_state_dict({**off.state_dict(), **simcse.state_dict()})
    assert off.needs == simcse.needs
    assert sum(terms_of(off, views).values()) == pytest.approx(sum(terms_of(simcse, views).values()), abs=1e-5)


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
    weights = recipe.build(recipe.presets["bert-base-uncased"].params, 256).state_dict()
    assert float(weights["head.0.weight"].std()) == pytest.approx(0.02, rel=0.02)
    assert not weights["head.0.bias"].any()


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature 0"):
        replace(OBJECTIVES["simcse"].presets["minilm"].params, temperature=0.0)
