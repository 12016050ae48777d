"""Tests of whitening, and of WhitenedCSE, which uses it."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from training.objectives.base import Views
from training.objectives.whitenedcse import (
    RECIPE,
    MultiPositive,
    WhitenedCSE,
    WhitenedCSEParams,
    interleaved,
    multi_positive_loss,
    positive_log_shares,
    separated,
)
from training.objectives.whitening import (
    Gradient,
    GroupWhitening,
    MomentumWhitening,
    covariance,
    group_whitening,
    inverse_square_root,
    principal_axes,
    shuffled_group_whitening,
)

WIDTHS = {
    "bert-base-uncased": 768,
    "bert-large-uncased": 1024,
    "roberta-base": 768,
    "roberta-large": 1024,
    "minilm": 384,
    "minilm-cls": 384,
    "minilm-passages": 384,
}

seeds = st.integers(0, 999)


def correlated(*shape: int, seed: int = 0) -> Tensor:
    """Return float64 rows with a mean and with correlated channels."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=rng, dtype=torch.float64)
    mixing = torch.randn(shape[-1], shape[-1], generator=rng, dtype=torch.float64)
    return x @ (mixing + 2 * torch.eye(shape[-1], dtype=torch.float64)) + 3


def rotation(dim: int, seed: int) -> Tensor:
    turned: Tensor = torch.linalg.qr(correlated(dim, dim, seed=seed)).Q
    return turned


def same(a: Tensor, b: Tensor, tolerance: float = 1e-8) -> bool:
    return bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance))


@given(groups=st.sampled_from([1, 2, 3, 4, 6, 12]), seed=seeds)
def test_whitened_groups_are_centred_and_have_the_identity_as_covariance(groups: int, seed: int) -> None:
    white = group_whitening(correlated(40, 12, seed=seed), groups, eps=0.0)
    assert same(white.mean(0), torch.zeros(12, dtype=torch.float64))
    each = white.reshape(40, groups, -1).transpose(0, 1)
    identity = torch.eye(12 // groups, dtype=torch.float64).expand(groups, -1, -1)
    assert same(covariance(each), identity, 1e-6), "of one seed in thousands the covariance is close to singular"


@given(seed=seeds)
@settings(max_examples=20)
def test_zca_turns_with_its_vectors(seed: int) -> None:
    x, turned = correlated(30, 5, seed=seed), rotation(5, seed)
    assert same(group_whitening(x @ turned, 1, eps=0.0), group_whitening(x, 1, eps=0.0) @ turned)


@given(seed=seeds)
@settings(max_examples=20)
def test_of_all_whitenings_zca_moves_the_vectors_least(seed: int) -> None:
    x = correlated(30, 5, seed=seed)
    centred, white = x - x.mean(0), group_whitening(x, 1, eps=0.0)
    other = white @ rotation(5, seed + 1)
    assert (centred - white).norm() <= (centred - other).norm() + 1e-9


def test_shuffled_channels_are_put_back() -> None:
    views, dim = correlated(3, 20, 12), 12
    orders = torch.stack([torch.randperm(dim) for _ in range(3)])
    white = shuffled_group_whitening(views, orders, 4, eps=1e-5)
    for view, order, result in zip(views, orders, white, strict=True):
        assert same(result[:, order], group_whitening(view[:, order], 4, eps=1e-5))
    unmoved = torch.arange(dim).expand(3, -1)
    assert same(shuffled_group_whitening(views, unmoved, 4, eps=1e-5), group_whitening(views, 4, eps=1e-5))


def test_a_shuffle_is_seen_only_where_groups_have_company() -> None:
    x, order = correlated(20, 12), torch.randperm(12)
    for groups, alike in ((12, True), (1, True), (4, False)):
        shuffled = shuffled_group_whitening(x, order, groups, eps=1e-5)
        assert same(shuffled, group_whitening(x, groups, eps=1e-5)) is alike


def test_every_view_has_a_batch_and_groups_of_its_own() -> None:
    view = correlated(20, 12)
    whitening = GroupWhitening(12, 4, shuffled=True, eps=1e-5, gradient="detached")
    first, second = whitening(torch.stack([view, view]), torch.Generator().manual_seed(0))
    again, _ = whitening(torch.stack([view, 5 * correlated(20, 12, seed=1)]), torch.Generator().manual_seed(0))
    assert same(first, again)
    assert not same(first, second)


def test_groups_of_all_channels_do_not_depend_on_their_order() -> None:
    views, rng = correlated(3, 20, 12), torch.Generator().manual_seed(0)
    whitening = GroupWhitening(12, 1, shuffled=True, eps=1e-5, gradient="detached")
    assert same(whitening(views, rng), group_whitening(views, 1, eps=1e-5))


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_the_covariance_has_the_divisor_of_pytorch(rows: int) -> None:
    x = correlated(rows, 4)
    assert same(covariance(x - x.mean(0)), x.T.cov(correction=0))
    assert same(covariance(x - x.mean(0), correction=1), x.T.cov(correction=1))


def test_only_pairs_are_whitened_without_waiting_for_the_host() -> None:
    waits = {groups: GroupWhitening(12, groups, shuffled=True, eps=1e-5, gradient="full").host for groups in (4, 6, 12)}
    assert waits == {4: True, 6: False, 12: True}


def test_the_covariance_is_a_constant_unless_its_gradient_is_asked_for() -> None:
    x, order, weights = correlated(20, 6), torch.randperm(6), correlated(20, 6, seed=1)

    def gradient(**how: Any) -> Tensor:
        leaf = x.clone().requires_grad_()
        plain = (group_whitening(leaf, 3, eps=1e-3, **how) * weights).sum()
        shuffled = (shuffled_group_whitening(leaf, order, 3, eps=1e-3, **how) * weights).sum()
        return torch.cat(torch.autograd.grad(plain, leaf) + torch.autograd.grad(shuffled, leaf))

    assert same(gradient(), gradient(gradient="detached"))
    assert not same(gradient(), gradient(gradient="full"))


@given(dim=st.integers(1, 5), eps=st.sampled_from([0.0, 0.5]), seed=seeds)
def test_the_inverse_root_of_a_matrix_makes_it_the_identity(dim: int, eps: float, seed: int) -> None:
    matrices = covariance(torch.stack([correlated(30, dim, seed=seed), correlated(30, dim, seed=seed + 1)]))
    regular = matrices + eps * torch.eye(dim, dtype=torch.float64)
    root, axes = inverse_square_root(matrices, eps), principal_axes(matrices, eps)
    identity = torch.eye(dim, dtype=torch.float64).expand(2, -1, -1)
    assert same(root, root.mT)
    assert same(root @ regular @ root, identity)
    assert same(axes.mT @ regular @ axes, identity)
    assert same(axes @ axes.mT, root @ root)
    lengths = axes.norm(dim=-2)  # 1 / sqrt(eigenvalue + eps).
    assert (lengths.diff(dim=-1) >= 0).all(), "the largest eigenvalue comes first"
    assert (axes.gather(-2, axes.abs().argmax(-2, keepdim=True)) > 0).all()


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
@pytest.mark.parametrize("repeated", [False, True], ids=["distinct", "repeated"])
def test_the_gradient_of_the_inverse_root_is_exact_also_at_repeated_eigenvalues(dim: int, repeated: bool) -> None:
    identity = torch.eye(dim, dtype=torch.float64)
    matrix = identity if repeated else covariance(correlated(30, dim))

    def of_symmetric(x: Tensor) -> Tensor:
        return inverse_square_root((x + x.mT) / 2, 1e-3)

    assert torch.autograd.gradcheck(of_symmetric, matrix.clone().requires_grad_())


@pytest.mark.parametrize("kind", ["group", "pca", "zca"])
@pytest.mark.parametrize("gradient", get_args(Gradient))
@pytest.mark.parametrize("rows", ["few", "equal", "zero", "one"])
@pytest.mark.parametrize("momentum", [0.0, 0.99])
def test_a_batch_without_full_rank_gives_numbers(kind: Any, gradient: Gradient, rows: str, momentum: float) -> None:
    n = 1 if rows == "one" else 4
    drawn = correlated(2, n, 12).float()
    scale = {"equal": 0.0, "zero": 0.0}.get(rows, 1.0)
    views = (scale * drawn + (3.0 if rows == "equal" else 0.0)).requires_grad_()
    whitening = (
        GroupWhitening(12, 1, shuffled=False, eps=1e-5, gradient=gradient)
        if kind == "group"
        else MomentumWhitening(12, kind, momentum=momentum, eps=1e-5, gradient=gradient)
    )
    white = whitening(views, torch.Generator())
    white.square().sum().backward()
    assert white.isfinite().all()
    assert views.grad is not None and views.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["group", "pca", "zca"])
def test_vectors_of_a_diverged_encoder_stay_nan(kind: Any) -> None:
    whitening = (
        GroupWhitening(12, 4, shuffled=False, eps=1e-5, gradient="detached")
        if kind == "group"
        else MomentumWhitening(12, kind, momentum=0.9, eps=1e-5, gradient="detached")
    )
    assert whitening(torch.full((2, 4, 12), torch.nan), torch.Generator()).isnan().all()


def test_a_detached_covariance_is_a_constant_for_the_gradient() -> None:
    x = correlated(20, 12)
    upstream = torch.randn(20, 12, dtype=torch.float64)
    found = {}
    for gradient in get_args(Gradient):
        leaf = x.clone().requires_grad_()
        white = group_whitening(leaf, 4, eps=0.0, gradient=gradient)
        (found[gradient],) = torch.autograd.grad((white * upstream).sum(), leaf)
    centred = x - x.mean(0)
    roots = inverse_square_root(covariance(centred.reshape(20, 4, 3).transpose(0, 1)), 0.0)
    moved = ((upstream - upstream.mean(0)).reshape(20, 4, 3).transpose(0, 1) @ roots).transpose(0, 1).reshape(20, 12)
    assert same(found["detached"], moved)
    assert not same(found["full"], moved)


@pytest.mark.parametrize("gradient", get_args(Gradient))
def test_of_moving_statistics_the_mean_always_has_gradient_and_the_covariance_if_it_is_not_detached(
    gradient: Gradient,
) -> None:
    x, upstream = correlated(2, 20, 6), torch.randn(2, 20, 6, dtype=torch.float64)
    found, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    whitening = MomentumWhitening(6, "zca", momentum=0.5, eps=1e-5, gradient=gradient)
    (of_found,) = torch.autograd.grad((whitening(found, torch.Generator()) * upstream).sum(), found)
    rows = expected.flatten(0, 1)
    spread = 0.5 * torch.eye(6, dtype=torch.float64) + 0.5 * covariance(rows - rows.mean(0), correction=1)
    root = inverse_square_root(spread.detach() if gradient == "detached" else spread, 1e-5)
    (of_expected,) = torch.autograd.grad(((expected - 0.5 * rows.mean(0)) @ root * upstream).sum(), expected)
    assert same(of_found, of_expected)


@pytest.mark.parametrize("whitening", ["group", "shuffled-group", "zca"])
def test_an_objective_has_the_gradient_it_is_told_to(whitening: Any) -> None:
    def of(gradient: Gradient) -> Tensor:
        params = WhitenedCSEParams(groups=3, head=False, whitening=whitening, gradient=gradient, momentum=0.5)
        views = correlated(3, 9, 12).requires_grad_()
        loss = WhitenedCSE(params, 12)(Views(views), torch.Generator().manual_seed(0))["info_nce"]
        return torch.autograd.grad(loss, views)[0]

    first, second = map(of, get_args(Gradient))
    assert not same(first, second, 1e-3)


def test_whitening_stays_float32_under_autocast() -> None:
    views = correlated(2, 20, 12).float()
    for whitening in (
        GroupWhitening(12, 4, shuffled=True, eps=1e-5, gradient="detached"),
        MomentumWhitening(12, "zca", momentum=0.5, eps=1e-5, gradient="detached"),
    ):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = deepcopy(whitening)(views, torch.Generator().manual_seed(0))
        assert inside.dtype == torch.float32
        assert torch.equal(inside, whitening(views, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("kind", ["pca", "zca"])
def test_moving_statistics_reach_those_of_the_vectors(kind: Any) -> None:
    rng = torch.Generator().manual_seed(0)
    mixing = torch.randn(4, 4, generator=rng)
    whitening = MomentumWhitening(4, kind, momentum=0.99, eps=1e-5, gradient="detached")
    for _ in range(1000):
        white = whitening(torch.randn(2, 32, 4, generator=rng) @ mixing + 3, rng)
    assert same(whitening.mean, torch.full((4,), 3.0).double(), 0.1)
    assert same(whitening.covariance, (mixing.T @ mixing).double(), 0.1)
    assert white.shape == (2, 32, 4)
    fresh = whitening(torch.randn(1, 4000, 4, generator=rng) @ mixing + 3, rng)[0]
    assert same(covariance(fresh - fresh.mean(0)), torch.eye(4), 0.15)


@pytest.mark.parametrize(("kind", "matrix"), [("pca", principal_axes), ("zca", inverse_square_root)])
def test_each_kind_has_its_matrix(kind: Any, matrix: Any) -> None:
    views = correlated(2, 8, 4)
    whitening = MomentumWhitening(4, kind, momentum=0.5, eps=1e-5, gradient="full")
    white = whitening(views, torch.Generator())
    assert same(white, (views - whitening.mean) @ matrix(whitening.covariance, 1e-5))


def test_moving_statistics_are_part_of_a_checkpoint() -> None:
    params = replace(RECIPE.presets["minilm"].params, whitening="zca")
    first, second = WhitenedCSE(params, 12), WhitenedCSE(params, 12)
    views, rng = Views(correlated(3, 8, 12).float()), torch.Generator()
    first(views, rng)
    second.load_state_dict(first.state_dict())
    assert first(views, rng) == second(views, rng)


@given(count=st.integers(2, 4), n=st.integers(1, 7))
@settings(max_examples=20)
def test_the_published_parts_hold_all_views_of_a_sentence_together(count: int, n: int) -> None:
    views = torch.arange(count * n).reshape(count, n, 1)
    parts = interleaved(views)
    assert torch.equal(separated(parts), views)
    assert parts.flatten().remainder(n).tolist() == [i for i in range(n) for _ in range(count)]


def test_the_published_parts_mix_views_and_part_sentences() -> None:
    objective = WhitenedCSE(WhitenedCSEParams(groups=6, chunking="reference"), 12)
    views = correlated(3, 9, 12).float()
    moved = views.flip(1)
    terms = [objective(Views(x), torch.Generator().manual_seed(0))["info_nce"] for x in (views, moved)]
    assert not same(terms[0], terms[1], 1e-3)


def test_a_single_feature_asks_for_one_pass_and_gives_it_gradient() -> None:
    objective = WhitenedCSE(WhitenedCSEParams(groups=4, single_feature=True), 12)
    assert objective.needs.views == 1
    noisy = correlated(1, 9, 12).float().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(Views(noisy), torch.Generator())["info_nce"], noisy)
    assert (gradient.abs().sum(2) > 0).all()


@pytest.mark.parametrize("reading", get_args(MultiPositive))
def test_the_weight_of_a_positive_is_felt(reading: MultiPositive) -> None:
    logits = torch.randn(2, 5, 5)
    even, uneven = (multi_positive_loss(logits, weights, reading) for weights in ((1.0, 1.0), (1.0, 0.5)))
    assert not same(even, uneven)


def test_readings_of_equation_8_pull_on_different_positives() -> None:
    """Use a first positive that is more similar to its anchor than the second, and compare gradients."""
    pulls: dict[str, Tensor] = {}
    for reading in get_args(MultiPositive):
        logits = torch.zeros(2, 4, 4)
        logits[0] += 3 * torch.eye(4)
        logits[1] += torch.eye(4)
        logits.requires_grad_()
        (gradient,) = torch.autograd.grad(multi_positive_loss(logits, (1.0, 1.0), reading), logits)
        pulls[reading] = -gradient[:, 0, 0]
    ratios = {reading: float(least / most) for reading, (most, least) in pulls.items()}
    assert ratios["L2-intended"] > ratios["L1"] > ratios["L2-no-minus"] > 0
    assert (pulls["L2-eq8"] < 0).all()


def test_a_share_near_one_keeps_its_digits() -> None:
    logits = torch.tensor([[[30.0, 0.0], [0.0, 30.0]]], requires_grad=True)
    shares = positive_log_shares(logits)
    assert shares[0].tolist() == pytest.approx([-math.exp(-30)] * 2, rel=1e-5)
    (gradient,) = torch.autograd.grad(shares.sum(), logits)
    assert gradient[0, 0].tolist() == pytest.approx([math.exp(-30), -math.exp(-30)], rel=1e-5)


def test_groups_that_do_not_divide_the_width_name_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"groups: 384 does not divide the width 1024; these do: 1, 2, 4, .*1024$"):
        WhitenedCSE(WhitenedCSEParams(groups=384), 1024)
    WhitenedCSE(WhitenedCSEParams(groups=384, whitening="zca"), 16)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"views": 1}, "views"),
        ({"groups": 0}, "groups"),
        ({"eps": 0.0}, "eps"),
        ({"momentum": 1.0}, "momentum"),
        ({"positive_weights": (1.0,)}, "positive_weights"),
        ({"positive_weights": (1.0, 0.0)}, "positive_weights"),
        ({"whitening": "pca", "gradient": "full"}, "gradient"),
        ({"single_feature": True, "whitening": "group"}, "single_feature"),
        ({"single_feature": True, "chunking": "reference"}, "single_feature"),
        ({"chunking": "reference", "whitening": "zca"}, "chunking"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}"):
        WhitenedCSEParams(**changes)


@pytest.mark.parametrize("changes", [{"views": 2}, {"groups": 1}, {"momentum": 0.0, "whitening": "zca"}])
def test_the_smallest_values_of_the_parameters_give_a_loss(changes: dict[str, Any]) -> None:
    objective = WhitenedCSE(WhitenedCSEParams(**{"groups": 6, **changes}), 12)
    views = correlated(objective.needs.views, 9, 12).float()
    assert objective(Views(views), torch.Generator())["info_nce"].isfinite()


def test_the_groups_of_a_preset_divide_its_width() -> None:
    for name, preset in RECIPE.presets.items():
        assert WIDTHS[name] % preset.params.groups == 0
