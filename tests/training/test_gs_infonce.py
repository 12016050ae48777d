"""Tests of GS-InfoNCE's noise, in addition to the contract tests of all objectives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.objectives.contrastive import gaussian_negatives, info_nce
from training.objectives.gs_infonce import GSInfoNCEParams, smoothed_logits

TAU = 0.05


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_the_scale_of_the_noise_does_nothing(scale: float, seed: int) -> None:
    anchors, positives = draw(2, 5, 8, seed=seed)
    noise = draw(15, 8, seed=seed + 1)
    plain, scaled = (smoothed_logits(anchors, positives, g, temperature=TAU) for g in (noise, scale * noise))
    torch.testing.assert_close(plain, scaled, rtol=1e-12, atol=1e-12)


def test_a_weight_of_two_counts_every_noise_twice() -> None:
    anchors, positives = draw(2, 5, 8)
    noise = draw(15, 8, seed=1)
    once = smoothed_logits(anchors, positives, noise, temperature=TAU, noise_weight=2.0)
    twice = smoothed_logits(anchors, positives, noise.repeat(2, 1), temperature=TAU)
    torch.testing.assert_close(info_nce(once), info_nce(twice))


@given(seed=st.integers(0, 99), weight=st.floats(0.01, 10))
def test_noise_only_adds_to_the_loss(seed: int, weight: float) -> None:
    anchors, positives = draw(2, 5, 8, seed=seed)
    noise = draw(20, 8, seed=seed + 1)
    losses = [
        info_nce(smoothed_logits(anchors, positives, noise[:count], temperature=TAU, noise_weight=weight))
        for count in (0, 1, 5, 20)
    ]
    assert losses == sorted(losses)


@pytest.mark.parametrize(("ratio", "count"), [(0.0, 0), (0.5, 3), (1.0, 7), (2.5, 17), (16.0, 112)])
def test_the_ratio_is_to_the_batch_rounded_down(ratio: float, count: int) -> None:
    assert gaussian_negatives(torch.zeros(7, 12), ratio, torch.Generator()).shape == (count, 12)


def test_noise_is_drawn_anew_each_step_and_from_the_generator_alone() -> None:
    anchors, rng = torch.zeros(200, 32), torch.Generator().manual_seed(3)
    first, second = (gaussian_negatives(anchors, 3.0, rng) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, gaussian_negatives(anchors, 3.0, torch.Generator().manual_seed(3)))
    assert first.mean().item() == pytest.approx(0, abs=0.02)
    assert first.std().item() == pytest.approx(1, abs=0.02)


def test_noise_has_the_same_numbers_in_every_precision() -> None:
    wide, plain, narrow = (
        gaussian_negatives(torch.zeros(4, 6, dtype=dtype), 1.0, torch.Generator().manual_seed(0))
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
    )
    assert (wide.dtype, plain.dtype, narrow.dtype) == (torch.float64, torch.float32, torch.float32)
    assert torch.equal(wide.float(), plain) and torch.equal(plain, narrow)


@pytest.mark.parametrize(
    "changes",
    [{"temperature": 0.0}, {"noise_weight": 0.0}, {"noise_ratio": -1.0}, {"noise_ratio": math.inf}],
    ids="-".join,
)
def test_what_can_not_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        GSInfoNCEParams(**changes)
