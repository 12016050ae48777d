"""Tests of the papers' equations on vectors with known losses: closed forms in float64, to 1e-12."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from training.objectives import OBJECTIVES
from training.objectives.base import Views
from training.objectives.contrastive import ascend, barlow_twins, cross_correlation, dimension_contrast
from training.objectives.whitenedcse import MultiPositive, multi_positive_loss, positive_logits
from training.objectives.whitening import Statistics, group_whitening, shuffled_group_whitening

E1, E2, E3 = torch.eye(3, dtype=torch.float64)
ORTHOGONAL = torch.stack([E1, E2])
"""Two orthogonal sentences, each with equal views."""


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=1e-12, abs=1e-12)


def terms(objective: str, views: Views, seed: int = 0, **params: Any) -> dict[str, float]:
    recipe = OBJECTIVES[objective]
    defaults = type(recipe.presets["bert-base-uncased"].params)
    built: Any = recipe.build(defaults(head=False, temperature=1.0, **params), 3)
    return {name: value.item() for name, value in built(views, torch.Generator().manual_seed(seed)).items()}


def two(*vectors: Tensor, **others: Tensor) -> Views:
    return Views(noisy=torch.stack([torch.stack(vectors)] * 2), **others)


def test_simcse_equation_4() -> None:
    """The only positive is the same sentence's other view, at cosine 0; the other sentence is at cosine 1."""
    swapped = Views(torch.stack([ORTHOGONAL, ORTHOGONAL.flip(0)]))
    assert terms("simcse", two(E1, E2))["info_nce"] == exactly(-math.log(math.e / (math.e + 1)))
    assert terms("simcse", swapped)["info_nce"] == exactly(-math.log(1 / (math.e + 1)))


def test_gs_infonce_equation_5() -> None:
    """Use a positive of cosine 1, a sentence of cosine 0, and lambda for each noise vector."""
    noise = torch.randn(4, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float32).double()
    cosines = [[float(n[i] / n.norm()) for n in noise] for i in range(2)]
    losses = [-math.log(math.e / (math.e + 1 + 0.5 * sum(map(math.exp, row)))) for row in cosines]
    found = terms("gs-infonce", two(E1, E2), seed=7, noise_ratio=2.0, noise_weight=0.5)
    assert found["info_nce"] == exactly(sum(losses) / 2)


def test_dclr_equations_5_and_6() -> None:
    """Remove a false negative from the sum, which keeps the positive."""
    apart, alike = (two(E1, E2, teacher=torch.stack(pair)) for pair in ((E1, E3), (E1, E1)))
    whole = terms("dclr", apart, noise_ratio=0.0)["info_nce"]
    assert whole == exactly(-math.log(math.e / (math.e + 1)))
    assert terms("dclr", alike, noise_ratio=0.0)["info_nce"] == exactly(0)


def test_dclr_equations_5_and_6_with_noise() -> None:
    """Noise is judged as the sentences are: what the teacher finds too near to a sentence is left out of its sum."""
    noise = torch.randn(4, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float32).double()
    cosines = [[float(n[i] / n.norm()) for n in noise] for i in range(2)]
    phi = 0.1
    kept = [[cosine for cosine in row if cosine < phi] for row in cosines]
    assert 0 < sum(map(len, kept)) < 8, "some are left out, and some are not"
    losses = [-math.log(math.e / (math.e + 1 + sum(map(math.exp, row)))) for row in kept]
    views = two(E1, E2, teacher=ORTHOGONAL)
    found = terms("dclr", views, seed=7, noise_ratio=2.0, ascent_steps=0, threshold=phi)
    assert found["info_nce"] == exactly(sum(losses) / 2)


def test_dclr_equations_3_and_4() -> None:
    """Move noise of length r at the angle a to the only anchor, by a step of the rate's length."""
    angle, length, rate = 1.0, 2.0, 0.25
    noise = length * (math.cos(angle) * E1 + math.sin(angle) * E2)
    (moved,) = ascend(noise[None], E1[None], steps=1, rate=rate, temperature=1.0)
    towards = math.sin(angle) * E1 - math.cos(angle) * E2
    torch.testing.assert_close(moved, noise + rate * towards, rtol=1e-12, atol=1e-12)


def test_whitenedcse_equations_2_to_6() -> None:
    """Whiten two channels with covariance [[2, 1], [1, 2]], whose eigenvalues are 3 and 1."""
    axes = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    mean = torch.tensor([5.0, -3.0], dtype=torch.float64)
    x = corners * torch.tensor([3.0, 1.0], dtype=torch.float64).sqrt() @ axes + mean
    torch.testing.assert_close((x - mean).T @ (x - mean) / 4, torch.tensor([[2.0, 1.0], [1.0, 2.0]]).double())
    torch.testing.assert_close(group_whitening(x, 1, eps=0.0), corners @ axes, rtol=1e-12, atol=1e-12)


def test_whitenedcse_equations_2_to_6_put_the_channels_back() -> None:
    """Channels 0 and 2 are one group, whose covariance is known, 1 and 3 the other, which is white already."""
    root = math.sqrt(3)
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    axes = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
    x, white = torch.zeros(2, 4, 4, dtype=torch.float64)
    x[:, [0, 2]], white[:, [0, 2]] = corners * torch.tensor([root, 1.0], dtype=torch.float64) @ axes, corners @ axes
    x[:, [1, 3]] = white[:, [1, 3]] = corners
    found = shuffled_group_whitening(x, torch.tensor([0, 2, 1, 3]), 2, eps=0.0)
    torch.testing.assert_close(found, white, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("reading", "shares", "sign"),
    [
        ("L2-eq8", (math.exp(-1) / (math.e + 1), 1 / (math.e + 1)), -1),
        ("L2-no-minus", (math.e / (math.e + 1), 1 / (math.e + 1)), -1),
        ("L2-intended", ((math.e + 1) / math.e, math.e + 1), 1),
    ],
)
def test_whitenedcse_equation_8(reading: MultiPositive, shares: tuple[float, float], sign: int) -> None:
    """The two positives of equation 7's test, in the three readings of one logarithm around both."""
    views = torch.stack([ORTHOGONAL, ORTHOGONAL, ORTHOGONAL.flip(0)])
    loss = multi_positive_loss(positive_logits(views, 1.0), (1.0, 3.0), reading).item()
    assert loss == exactly(sign * math.log(shares[0] + 3 * shares[1]))


def test_whitenedcse_equation_7() -> None:
    """Use two positives with lambda 1 and 3: one at cosine 1, and one at cosine 0, where another sentence is nearer."""
    views = torch.stack([ORTHOGONAL, ORTHOGONAL, ORTHOGONAL.flip(0)])
    loss = multi_positive_loss(positive_logits(views, 1.0), (1.0, 3.0), "L1").item()
    assert loss == exactly(-math.log(math.e / (math.e + 1)) - 3 * math.log(1 / (math.e + 1)))


def test_whitenedcse_equation_13() -> None:
    """Weight earlier statistics with beta and the batch, divided by N - 1, with 1 - beta."""
    before = Statistics(torch.zeros(1).double(), torch.ones(1, 1).double())
    moved = before.updated(torch.tensor([[1.0], [3.0]], dtype=torch.float64), momentum=0.75)
    assert moved.mean.item() == exactly(0.25 * 2)
    assert moved.covariance.item() == exactly(0.75 + 0.25 * 2)


@pytest.mark.parametrize("m", [0.5, 0.9, 1.2])
def test_imsimcse_equation_3(m: float) -> None:
    """Weight the sum of the negatives, which are views without dropout at the cosine 1/2, with m."""
    clean = torch.stack([E1, E1 / 2 + math.sqrt(3) / 2 * E2])[None]
    found = terms("imsimcse", two(E1, E2, clean=clean), m=m, dcl_weight=0.0)
    assert found["info_nce"] == exactly(-math.log(math.e / (math.e + m * math.sqrt(math.e))))


def test_imsimcse_equation_4() -> None:
    """Columns at the angle of 60 degrees to themselves in the other view, and at 30 and 150 to each other's."""
    turn = torch.tensor([[0.5, -math.sqrt(3) / 2], [math.sqrt(3) / 2, 0.5]], dtype=torch.float64)
    z = 2 * torch.eye(2, dtype=torch.float64)
    loss = barlow_twins(cross_correlation(z, turn), 0.1).item()
    assert loss == exactly(2 * 0.5**2 + 0.1 * 2 * 0.75)


def test_imsimcse_equation_6() -> None:
    """The sum of equation 3 and lambda times the contrast between dimensions."""
    views = two(E1, E2, E3, clean=torch.eye(3, dtype=torch.float64)[None])
    found = terms("imsimcse", views, m=0.9, dcl_weight=0.25, dcl_temperature=2.0)
    assert found.keys() == {"info_nce", "dcl"}
    assert found["info_nce"] == exactly(-math.log(math.e / (math.e + 0.9 * 2)))
    contrast = dimension_contrast(views.noisy[0], views.noisy[1], 2.0).item()
    assert found["dcl"] == exactly(0.25 * contrast)
    # Of three columns that are 1 once and 0 twice, the correlations are 1 and -1/2.
    assert contrast == pytest.approx(math.log1p(2 * math.exp(-1.5 / 2.0)), rel=1e-4), "with the eps of batch norm"


def test_imsimcse_equation_5_without_infonce() -> None:
    """Use two uncorrelated dimensions: C is the identity in the code's form, and N - 1 times it in the printed form."""
    z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    tau, alone = 2.0, math.log1p(math.exp(-1 / 2.0))
    assert dimension_contrast(z, z, tau, eps=0.0).item() == exactly(alone)
    printed = dimension_contrast(z, z, tau, form="printed", eps=0.0).item()
    assert printed == exactly(2 * math.log1p(math.exp(-3 / tau)))
    recipe = OBJECTIVES["imsimcse"]
    params = type(recipe.presets["minilm"].params)(head=False, contrast_weight=0.0, dcl_weight=0.5, dcl_temperature=tau)
    found = recipe.build(params, 2)(Views(torch.stack([z, z])), torch.Generator())
    assert found.keys() == {"dcl"}, "and nothing of InfoNCE"
    assert found["dcl"].item() == pytest.approx(0.5 * alone, rel=1e-4), "with the eps of batch norm"


def test_printed_dcl_is_finite_where_a_dimension_does_not_vary() -> None:
    """Use a constant dimension, for which the printed form without eps would divide by 0."""
    z = torch.tensor([[1.0, 2.0], [1.0, -2.0]], dtype=torch.float64)
    assert math.isfinite(dimension_contrast(z, z, 5.0, form="printed").item())


def test_something_of_imsimcse_must_have_a_weight() -> None:
    params = type(OBJECTIVES["imsimcse"].presets["minilm"].params)
    with pytest.raises(ValueError, match="contrast_weight, dcl_weight, barlow_weight are all 0"):
        params(contrast_weight=0.0, dcl_weight=0.0)
