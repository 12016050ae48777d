"""Tests of the losses between dimensions, and of ImSimCSE, which adds them to InfoNCE."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from training.objectives.base import Needs, Views
from training.objectives.contrastive import (
    DCLForm,
    barlow_twins,
    cross_correlation,
    dimension_contrast,
    rank_of_cross_correlation,
    standardised,
)
from training.objectives.imsimcse import RECIPE, ImSimCSE, ImSimCSEParams, off_info_nce
from training.objectives.whitening import group_whitening

seeds = st.integers(0, 999)
taus = st.sampled_from([0.5, 5.0, 20.0])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(n=st.integers(1, 9), seed=seeds)
def test_standardised_columns_have_mean_0_and_variance_1(n: int, seed: int) -> None:
    z = standardised(5 * drawn(n, 6, seed=seed) + 2, eps=1e-12)
    assert z.mean(0).abs().max() < 1e-9
    if n > 1:
        torch.testing.assert_close(z.square().mean(0), torch.ones(6).double(), rtol=1e-4, atol=0)


@given(tau=taus, seed=seeds)
def test_the_contrast_of_white_views_with_themselves_is_known(tau: float, seed: int) -> None:
    white = group_whitening(drawn(30, 6, seed=seed), 1, eps=0.0)
    alone = math.log(1 + 5 * math.exp(-1 / tau))
    assert dimension_contrast(white, white, tau, eps=0.0).item() == pytest.approx(alone, rel=1e-9)


@given(tau=taus, seed=seeds)
def test_white_views_have_the_least_contrast_and_their_dimensions_no_order(tau: float, seed: int) -> None:
    z1, z2 = drawn(2, 30, 6, seed=seed)
    order = torch.randperm(6)
    loss = dimension_contrast(z1, z2, tau).item()
    assert dimension_contrast(z1[:, order], z2[:, order], tau).item() == pytest.approx(loss, rel=1e-9)
    white = group_whitening(z1, 1, eps=0.0)
    assert dimension_contrast(white, white, tau, eps=0.0).item() < loss


@given(n=st.integers(2, 30), tau=taus, seed=seeds)
def test_the_printed_contrast_is_the_published_one_of_another_temperature(n: int, tau: float, seed: int) -> None:
    z1, z2 = drawn(2, n, 6, seed=seed)
    printed = dimension_contrast(z1, z2, tau * (n - 1), form="printed", eps=0.0).item()
    assert printed / 6 == pytest.approx(dimension_contrast(z1, z2, tau, eps=0.0).item(), rel=1e-9)


@pytest.mark.parametrize("form", get_args(DCLForm))
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_contrast_of_equal_sentences_is_a_number_with_a_gradient(form: DCLForm, n: int) -> None:
    z = torch.ones(2, n, 6, requires_grad=True)
    loss = dimension_contrast(z[0], z[1], 5.0, form=form)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(math.log(6) * (6 if form == "printed" else 1))
    assert z.grad is not None and z.grad.isfinite().all()


def test_losses_between_dimensions_stay_float32_under_autocast() -> None:
    z1, z2 = drawn(2, 30, 6).float()
    outside = dimension_contrast(z1, z2, 5.0), barlow_twins(cross_correlation(z1, z2), 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = dimension_contrast(z1, z2, 5.0), barlow_twins(cross_correlation(z1, z2), 0.1)
        assert dimension_contrast(z1.bfloat16(), z2.bfloat16(), 5.0).dtype == torch.float32
    assert inside == outside


def test_barlow_twins_is_zero_at_the_identity_and_weighs_what_is_off_the_diagonal() -> None:
    identity = torch.eye(4)
    assert barlow_twins(identity, 0.1).item() == 0
    assert barlow_twins(identity + 2 * identity.flip(0), 0.1).item() == pytest.approx(0.1 * 4 * 2**2)
    assert barlow_twins(3 * identity, 0.1).item() == pytest.approx(4 * 2**2)


@given(n=st.integers(1, 9), seed=seeds)
def test_a_batch_has_rank_for_as_many_dimensions_as_it_has_sentences(n: int, seed: int) -> None:
    z1, z2, dim = drawn(n, 12, seed=seed).float(), drawn(n, 12, seed=seed + 1).float(), 12
    assert rank_of_cross_correlation(z1, z2) == n
    assert rank_of_cross_correlation(z1, z2, centred=True) == n - 1
    assert rank_of_cross_correlation(z1, z2, drawn(dim - n, dim)) == dim
    assert rank_of_cross_correlation(z1, z2, drawn(0, dim)) == n


def test_artificial_rows_pull_the_correlation_towards_the_identity() -> None:
    z1, z2, rows = drawn(8, 16), drawn(8, 16, seed=1), drawn(4000, 16, seed=2)
    for centred in (False, True):
        distances = [
            (cross_correlation(z1, z2, artificial, centred=centred) - torch.eye(16)).norm()
            for artificial in (None, rows[:24], rows)
        ]
        assert distances[0] > distances[1] > distances[2]


@given(seed=seeds, scale=st.floats(0.1, 10))
def test_the_correlation_of_columns_knows_no_scale(seed: int, scale: float) -> None:
    z1, z2 = drawn(2, 8, 5, seed=seed)
    torch.testing.assert_close(cross_correlation(scale * z1, z2), cross_correlation(z1, z2))


@given(seed=seeds)
def test_both_places_of_m_agree_at_1_and_part_below(seed: int) -> None:
    """Check the effect of a smaller m, which makes the task easier on negatives and harder on a positive logit."""
    positives, negatives = drawn(6, seed=seed).abs(), drawn(6, 6, seed=seed + 1)
    plain, on_logit = (off_info_nce(positives, negatives, 1.0, m_on) for m_on in ("negatives", "positive-logit"))
    assert plain == on_logit
    assert off_info_nce(positives, negatives, 0.9) < plain
    assert off_info_nce(positives, negatives, 0.9, "positive-logit") > plain


def test_a_sentence_is_no_negative_of_itself() -> None:
    positives, negatives = drawn(6), drawn(6, 6, seed=1)
    changed = negatives.diagonal_scatter(torch.full((6,), 50.0).double())
    assert torch.equal(off_info_nce(positives, changed, 0.9), off_info_nce(positives, negatives, 0.9))


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({}, Needs(views=2, clean=True)),
        ({"negatives": "dropout"}, Needs(views=2)),
        ({"negatives": "gaussian-noise"}, Needs(views=2)),
        ({"negatives": "mean-sampling"}, Needs(views=20)),
        ({"positives": "mean-sampling", "samples": 3}, Needs(views=6, clean=True)),
        ({"negatives": "shared-mean"}, Needs(views=10)),
        ({"negatives": "shared-mean", "samples": 1}, Needs(views=2)),
    ],
)
def test_a_variant_asks_for_the_passes_it_uses(changes: dict[str, Any], needs: Needs) -> None:
    assert ImSimCSE(ImSimCSEParams(**changes), 12).needs == needs


def test_clean_views_stand_on_both_sides_of_the_negatives_alone() -> None:
    objective = ImSimCSE(ImSimCSEParams(dcl_weight=0.0), 12)
    noisy, clean = drawn(2, 6, 12).float(), drawn(1, 6, 12).float()
    rng = torch.Generator()
    alike = objective(Views(noisy, clean=clean[:, :1].expand(1, 6, -1)), rng)["info_nce"]
    apart = objective(Views(noisy, clean=clean), rng)["info_nce"]
    assert alike > apart
    assert objective(Views(noisy, clean=clean * 7), rng).keys() == {"info_nce"}


def test_a_mean_of_shared_views_is_one_vector_of_all_of_them() -> None:
    plain, shared = (
        ImSimCSE(ImSimCSEParams(negatives=negatives, m=1.0, dcl_weight=0.0, samples=3), 12)
        for negatives in ("mean-sampling", "shared-mean")
    )
    plain.load_state_dict(shared.state_dict())
    views, rng = drawn(6, 5, 12).float(), torch.Generator()
    repeated = views[[0, 0, 1, 1, 2, 2]]
    halves, whole = plain(Views(repeated), rng)["info_nce"], shared(Views(views[:3]), rng)["info_nce"]
    assert not torch.allclose(halves, whole)
    same_pair = plain(Views(repeated[[0, 2, 2, 4, 4, 0]]), rng)["info_nce"]
    torch.testing.assert_close(same_pair, whole)


@pytest.mark.parametrize(("centred", "rows", "rank"), [(False, 0, 6), (True, 0, 5), (False, 3, 9), (True, 3, 8)])
def test_the_rank_that_is_reported_is_of_the_correlation_that_was_scored(centred: bool, rows: int, rank: int) -> None:
    params = ImSimCSEParams(head=False, barlow_weight=0.1, barlow_centred=centred, artificial_rows=rows)
    objective = ImSimCSE(params, 12)
    assert objective.report() == {}
    objective(Views(drawn(2, 6, 12).float(), clean=drawn(1, 6, 12).float()), torch.Generator().manual_seed(0))
    assert objective.report() == {"correlation_rank": rank}


@pytest.mark.parametrize("side", ["positives", "negatives"])
def test_added_noise_grows_with_its_variance_from_none(side: str) -> None:
    losses = []
    for variance in (1e-20, 0.1, 10.0):
        changes: dict[str, Any] = {**RECIPE.as_simcse, side: "gaussian-noise", "noise_variance": variance}
        torch.manual_seed(0)
        objective = ImSimCSE(ImSimCSEParams(**changes), 12)
        losses.append(objective(Views(drawn(2, 6, 12).float()), torch.Generator().manual_seed(0))["info_nce"])
    torch.manual_seed(0)
    plain = ImSimCSE(replace(ImSimCSEParams(), **RECIPE.as_simcse), 12)
    torch.testing.assert_close(losses[0], plain(Views(drawn(2, 6, 12).float()), torch.Generator())["info_nce"])
    assert len({round(loss.item(), 5) for loss in losses}) == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"m": 0.0}, "m"),
        ({"noise_variance": math.nan}, "noise_variance"),
        ({"samples": 0}, "samples"),
        ({"dcl_temperature": -1.0}, "dcl_temperature"),
        ({"dcl_weight": -0.1}, "dcl_weight"),
        ({"barlow_weight": -0.1}, "barlow_weight"),
        ({"barlow_off_diagonal": -0.1}, "barlow_off_diagonal"),
        ({"artificial_rows": -1}, "artificial_rows"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} "):
        ImSimCSEParams(**changes)
