"""Contract tests of every objective in the table and of every ablation."""

from __future__ import annotations

import importlib
import math
from copy import deepcopy
from dataclasses import asdict, fields, replace
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
"""Ablations in which each sentence has noise of its own, so that its place in the batch affects the loss."""


def published(name: str) -> Any:
    """Return the parameters of an objective's first preset."""
    return next(iter(OBJECTIVES[name].presets.values())).params


def variants(*, but: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Parametrise by (objective, parameters): first the published ones, then each ablation."""
    found = {}
    for name, recipe in OBJECTIVES.items():
        found[name] = (name, published(name))
        for ablation, changes in recipe.ablations.items():
            found[f"{name}+{ablation}"] = (name, replace(published(name), **changes))
    kept = [pytest.param(*variant, id=label) for label, variant in found.items() if label not in but]
    return pytest.mark.parametrize(("name", "params"), kept)


every_variant = variants()


def width(params: Any) -> int:
    """Return a valid width D, with two channels in each group if there are groups."""
    return 2 * params.groups if "group" in getattr(params, "whitening", "none") else DIM


@cache
def _built(name: str, params: Any) -> nn.Module:
    torch.manual_seed(0)
    return cast(nn.Module, OBJECTIVES[name].build(params, width(params)))


def build(name: str, params: Any) -> Any:
    """Return an objective with its initial weights and statistics."""
    return deepcopy(_built(name, params))


def views_for(objective: Any, n: int, *, seed: int = 0, scale: float = 1.0) -> Views:
    """Draw random views of n sentences, or of n pairs if `seed` is odd: what `objective` needs, each with gradient."""
    needs, rng = objective.needs, torch.Generator().manual_seed(seed)
    base = 1 + torch.randn(n, width(objective.params), generator=rng)

    def near(*views: int) -> torch.Tensor:
        return (scale * (base + 0.3 * torch.randn(*views, *base.shape, generator=rng))).requires_grad_()

    return Views(
        noisy=near(needs.views),
        clean=near(1 + seed % 2) if needs.clean else None,
        teacher=near() if needs.teacher else None,
        start=near() if needs.start else None,
    )


def double(views: Views) -> Views:
    others = (views.clean, views.teacher, views.start)
    return Views(views.noisy.double(), *(None if x is None else x.double() for x in others))


def terms_of(objective: Any, views: Views, *, seed: int = 0) -> dict[str, float]:
    """Return the terms of a first call, without a change of running statistics."""
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
    objective = build(name, params).double()  # In float32, the axes of close eigenvalues are undetermined.
    views = double(views_for(objective, 7))
    moved = Views(
        noisy=views.noisy[:, order],
        clean=None if views.clean is None else views.clean[:, order],
        teacher=None if views.teacher is None else views.teacher[order],
        start=None if views.start is None else views.start[order],
    )
    assert terms_of(objective, moved) == pytest.approx(terms_of(objective, views), rel=1e-7, abs=1e-9)


@every_variant
def test_gradient_reaches_every_row_of_every_view_and_not_the_teacher(name: str, params: Any) -> None:
    objective = build(name, params)
    views = views_for(objective, 6)
    backward(objective, views)
    assert views.noisy.grad is not None and (views.noisy.grad.abs().sum(dim=2) > 0).all()
    if views.clean is not None:
        assert views.clean.grad is not None and (views.clean.grad.abs().sum(dim=2) > 0).all()
    assert all(frozen is None or frozen.grad is None for frozen in (views.teacher, views.start))


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


FELT = {"head": False, "temperature": 0.3, "noise_ratio": 1.5, "ascent_rate": 0.5, "threshold": 0.5}
"""Parameters of DCLR with an effect on random sentences, unlike the published ones."""
BARLOW = {"dcl_weight": 0.0, "barlow_weight": 0.5}
NOISY = {"positives": "gaussian-noise", "head": False}
SHARED = {"negatives": "shared-mean", "head": False}
WHITE = {"groups": 4, "head": False}
ZCA = {**WHITE, "whitening": "zca"}

CHANGES: dict[str, list[tuple[dict[str, Any], str, Any]]] = {
    "simcse": [({}, "temperature", 0.2), ({}, "head", False)],
    "distillation": [({}, "share", 0.25), ({}, "share", 1.0), ({}, "similarity", 4.0), ({}, "aligned", 0)],
    "static": [({}, "similarity", 1.0), ({}, "similarity", 0.0)],
    "gs-infonce": [
        ({}, "temperature", 0.2),
        ({}, "noise_ratio", 1.0),
        ({}, "noise_weight", 3.0),
        ({}, "head", False),
    ],
    "dclr": [
        ({}, "temperature", 0.2),
        (FELT, "noise_ratio", 3.0),
        (FELT, "ascent_steps", 1),
        (FELT, "ascent_rate", 0.1),
        (FELT, "ascent_temperature", 0.5),
        (FELT, "ascent_loss", "reference"),
        (FELT, "weighting", "reference"),
        (FELT, "weighting", "none"),
        (FELT, "threshold", 0.7),
        (FELT, "judge", "self"),
        (FELT, "distillation", 0.5),
        ({**FELT, "distillation": 1.0}, "temperature", 0.2),
        ({}, "head", False),
    ],
    "imsimcse": [
        ({}, "temperature", 0.2),
        ({}, "head", False),
        ({}, "positives", "mean-sampling"),
        ({}, "negatives", "shared-mean"),
        ({}, "m", 0.5),
        ({}, "m_on", "positive-logit"),
        ({}, "contrast_weight", 0.5),
        (NOISY, "noise_variance", 2.0),
        (SHARED, "samples", 3),
        ({}, "dcl_weight", 1.0),
        ({}, "dcl_temperature", 1.0),
        ({}, "dcl_form", "printed"),
        ({}, "barlow_weight", 0.5),
        (BARLOW, "barlow_off_diagonal", 0.2),
        (BARLOW, "barlow_centred", True),
        (BARLOW, "artificial_rows", 20),
    ],
    "whitenedcse": [
        (WHITE, "temperature", 0.2),
        (WHITE, "views", 4),
        (WHITE, "head", True),
        (WHITE, "single_feature", True),
        *((WHITE, "whitening", whitening) for whitening in ("none", "pca", "zca", "group")),
        (WHITE, "groups", 2),
        (WHITE, "eps", 0.5),
        (ZCA, "eps", 0.5),
        (ZCA, "momentum", 0.5),
        (WHITE, "chunking", "reference"),
        *((WHITE, "multi_positive", reading) for reading in ("L2-eq8", "L2-no-minus", "L2-intended")),
        (WHITE, "positive_weights", (0.5, 3.0)),
    ],
}
"""Changed values of each parameter, with values of other parameters for which the change has an effect."""
NOT_IN_THE_VALUE = {"gradient"}


def test_every_parameter_of_a_loss_is_changed_by_some_test() -> None:
    for name in OBJECTIVES:
        known = {field.name for field in fields(published(name))}
        assert {changed for _, changed, _ in CHANGES[name]} == known - NOT_IN_THE_VALUE


@pytest.mark.parametrize(
    ("name", "beside", "changed", "value"),
    [
        pytest.param(name, beside, changed, value, id=f"{name}-{changed}-{value}")
        for name, changes in CHANGES.items()
        for beside, changed, value in changes
    ],
)
def test_a_parameter_does_to_the_loss_what_it_does_to_the_oracle(
    name: str, beside: dict[str, Any], changed: str, value: Any
) -> None:
    before = replace(published(name), **beside)
    (_, plain), (found, expected) = (
        terms_and_oracle(name, params) for params in (before, replace(before, **{changed: value}))
    )
    assert found == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(plain, rel=1e-3)


def terms_and_oracle(name: str, params: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Return the terms of the objective and of its oracle, in float64."""
    objective = build(name, params).double()
    views = double(views_for(objective, 7))
    weights = {key: value.numpy() for key, value in objective.state_dict().items()}
    oracle = cast(Oracle, importlib.import_module(f"tests.training.oracles.{name.replace('-', '_')}").oracle)
    return terms_of(objective, views), oracle(ViewArrays.of(views), params, weights, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "changes"),
    [(name, recipe.as_simcse) for name, recipe in OBJECTIVES.items() if build(name, published(name)).needs.views > 1],
)
def test_switched_off_it_is_simcse(name: str, changes: dict[str, Any]) -> None:
    off = build(name, replace(published(name), **changes))
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


DEFAULTS: dict[str, dict[str, Any]] = {
    "simcse": {"temperature": 0.05, "head": True},
    "distillation": {"share": 0.5, "similarity": 0.0, "aligned": 6000},
    "static": {"similarity": 4.0},
    "gs-infonce": {"temperature": 0.05, "noise_ratio": 3.0, "noise_weight": 1.0, "head": True},
    "dclr": {
        "temperature": 0.05,
        "noise_ratio": 1.0,
        "ascent_steps": 4,
        "ascent_rate": 1e-3,
        "ascent_temperature": 0.05,
        "ascent_loss": "paper",
        "weighting": "paper",
        "threshold": 0.9,
        "judge": "teacher",
        "distillation": 0.0,
        "head": True,
    },
    "whitenedcse": {
        "temperature": 0.05,
        "views": 3,
        "head": True,
        "single_feature": False,
        "whitening": "shuffled-group",
        "groups": 384,
        "eps": 1e-5,
        "gradient": "detached",
        "momentum": 0.99,
        "chunking": "views",
        "multi_positive": "L1",
        "positive_weights": None,
    },
    "imsimcse": {
        "temperature": 0.05,
        "head": True,
        "positives": "dropout",
        "negatives": "off-dropout",
        "m": 0.9,
        "m_on": "negatives",
        "noise_variance": 0.1,
        "samples": 10,
        "contrast_weight": 1.0,
        "dcl_weight": 0.1,
        "dcl_temperature": 5.0,
        "dcl_form": "per-sentence",
        "barlow_weight": 0.0,
        "barlow_off_diagonal": 0.012,
        "barlow_centred": False,
        "artificial_rows": 0,
    },
}
VARIED = {
    "dclr": {"threshold", "noise_ratio"},
    "gs-infonce": {"noise_ratio"},
    "whitenedcse": {"groups"},
}
"""Parameters that the papers choose for each backbone."""
OURS = {"head": False, "dcl_weight": 0.01}
"""Parameters that the preset for MiniLM, which is not from a paper, also changes."""


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_a_preset_does_not_say_is_as_published(name: str) -> None:
    assert asdict(type(published(name))()) == DEFAULTS[name]
    for backbone, preset in OBJECTIVES[name].presets.items():
        changed = {key: value for key, value in asdict(preset.params).items() if value != DEFAULTS[name][key]}
        kept = {key: value for key, value in changed.items() if key not in VARIED.get(name, ())}
        ours = {key: value for key, value in OURS.items() if key in DEFAULTS[name]}
        assert (preset.pooling, kept) == (("mean", ours) if backbone in ("minilm", "minilm-passages") else ("cls", {}))


@pytest.mark.parametrize(
    ("name", "ablation", "changes"),
    [
        ("dclr", "knowledge-distillation", {"weighting": "none", "distillation": 1.0}),
        ("imsimcse", "dcl-only", {"negatives": "dropout", "m": 1.0, "dcl_temperature": 10.0}),
        ("imsimcse", "dcl-alone", {"contrast_weight": 0.0, "dcl_temperature": 0.05}),
        ("whitenedcse", "whitening-none", OBJECTIVES["whitenedcse"].as_simcse),
        *(
            (
                "imsimcse",
                f"barlow-twins-{rows}",
                {"negatives": "dropout", "m": 1.0, "dcl_weight": 0.0, "barlow_weight": 0.1, "artificial_rows": rows},
            )
            for rows in (0, 100, 300, 704)
        ),
    ],
)
def test_an_ablation_is_as_published(name: str, ablation: str, changes: dict[str, Any]) -> None:
    assert OBJECTIVES[name].ablations[ablation] == changes


def test_every_preset_says_where_its_values_are_from() -> None:
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
