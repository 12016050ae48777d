"""Tests of DCLR's ascent, weights and losses, in addition to the contract tests of all objectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.training.oracles.arrays import ViewArrays
from tests.training.oracles.dclr import oracle
from training.objectives.base import Needs, Views
from training.objectives.contrastive import ascend, cosine_logits, info_nce
from training.objectives.dclr import DCLR, RECIPE, DCLRParams, binary_cross_entropy, distillation, instance_weights

TAU = 0.05


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("weighting", ["paper", "reference"])
@pytest.mark.parametrize("ascent_loss", ["paper", "reference"])
@pytest.mark.parametrize("judge", ["teacher", "self"])
def test_equals_the_oracle_where_steps_and_weights_are_felt(weighting: Any, ascent_loss: Any, judge: Any) -> None:
    """Use a larger rate and threshold, because published steps have little effect on random sentences."""
    felt = DCLRParams(noise_ratio=1.5, ascent_rate=0.5, threshold=0.3, head=False)
    params = replace(felt, weighting=weighting, ascent_loss=ascent_loss, judge=judge)
    views = Views(draw(2, 6, 8), teacher=draw(6, 8, seed=1))
    expected = oracle(ViewArrays.of(views), params, {}, rng())
    unweighted = oracle(ViewArrays.of(views), replace(params, weighting="none"), {}, rng())
    unmoved = oracle(ViewArrays.of(views), replace(params, ascent_steps=0), {}, rng())
    assert expected != pytest.approx(unweighted, rel=1e-2)
    assert expected != pytest.approx(unmoved, rel=1e-3)
    terms = DCLR(params, 8)(views, rng())
    assert {term: value.item() for term, value in terms.items()} == pytest.approx(expected, rel=1e-6)


def non_uniformity(noise: torch.Tensor, anchors: torch.Tensor, sentences: torch.Tensor) -> torch.Tensor:
    """Return the part of the loss that depends on the noise."""
    return cosine_logits(anchors, torch.cat([noise, sentences]), TAU).logsumexp(dim=1).mean()


@given(seed=st.integers(0, 99), beside=st.booleans())
def test_a_step_follows_the_gradient_of_the_non_uniformity_loss(seed: int, beside: bool) -> None:
    noise, (anchors, positives) = draw(5, 8, seed=seed).requires_grad_(), draw(2, 6, 8, seed=seed + 1)
    sentences = positives if beside else positives[:0]
    loss = non_uniformity(noise, anchors, sentences)
    (gradient,) = torch.autograd.grad(loss, noise)
    moved = ascend(noise, anchors, steps=1, rate=1e-3, temperature=TAU, sentences=positives if beside else None)
    torch.testing.assert_close(moved - noise, 1e-3 * F.normalize(gradient, dim=1), rtol=1e-6, atol=1e-12)
    assert non_uniformity(moved, anchors, sentences) > loss
    assert not moved.requires_grad


def test_no_step_leaves_the_noise_as_it_was_drawn() -> None:
    noise = draw(5, 8)
    assert ascend(noise, draw(6, 8), steps=0, rate=1e-3, temperature=TAU) is noise


def test_noise_moves_as_it_would_without_autocast() -> None:
    noise, anchors = draw(5, 8).float(), draw(6, 8, seed=1).float()
    outside = ascend(noise, anchors, steps=4, rate=0.5, temperature=TAU)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ascend(noise, anchors, steps=4, rate=0.5, temperature=TAU)
    assert torch.equal(inside, outside)


def test_noise_without_any_share_still_takes_a_whole_step() -> None:
    """Use a gradient that is too small for float32."""
    anchors = torch.tensor([[1.0, 0.0], [0.9, 0.1]])
    noise = torch.tensor([[-1.0, 0.2]])
    moved = ascend(noise, anchors, steps=1, rate=0.1, temperature=0.01, sentences=anchors)
    assert (moved - noise).norm().item() == pytest.approx(0.1, rel=1e-5)


def test_a_sentence_like_another_is_no_negative_of_it() -> None:
    judged = draw(4, 8)
    judged[3] = 2 * judged[1]
    weights = instance_weights(judged, judged, draw(2, 8, seed=1), 0.99)
    expected = torch.ones(4, 6, dtype=torch.float64)
    expected[1, 3] = expected[3, 1] = 0
    assert torch.equal(weights, expected)


def test_a_cosine_that_just_reaches_the_threshold_is_of_a_false_negative() -> None:
    judged = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    assert instance_weights(judged, judged, judged[:1], 1.0).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_noise_is_judged_where_it_has_the_judges_width() -> None:
    judged, noise = draw(4, 8), draw(3, 8, seed=1)
    noise[2] = judged[0]
    assert instance_weights(judged, judged, noise, 0.99)[0].tolist() == [1, 1, 1, 1, 1, 1, 0]
    assert instance_weights(draw(4, 5), draw(4, 5), noise, -1.0)[:, 4:].eq(1).all()


def test_the_teacher_may_have_another_width() -> None:
    views = Views(draw(2, 4, 8), teacher=draw(4, 5))
    for changes in ({}, {"weighting": "reference"}, {"distillation": 1.0}):
        terms = DCLR(DCLRParams(head=False, **changes), 8)(views, rng())
        assert all(torch.isfinite(value) for value in terms.values())


def test_a_false_negative_might_as_well_not_be_there() -> None:
    anchors, positives = draw(2, 5, 8)
    logits = cosine_logits(anchors, positives, TAU)
    weights = torch.ones_like(logits)
    weights[:4, 4] = 0
    rest = info_nce(logits[:4, :4])
    torch.testing.assert_close(info_nce((logits + weights.log())[:4]), rest)


def test_the_removed_share_is_of_the_in_batch_negatives() -> None:
    judged = draw(4, 8)
    judged[3] = 2 * judged[1]
    objective = DCLR(DCLRParams(head=False, threshold=0.99), 8)
    assert objective.measured() == {}
    objective(Views(draw(2, 4, 8), teacher=judged), rng())
    assert objective.measured()["removed_share"].item() == pytest.approx(2 / 12)
    unweighted = DCLR(DCLRParams(head=False, weighting="none"), 8)
    unweighted(Views(draw(2, 4, 8)), rng())
    assert unweighted.measured() == {}


def test_a_single_sentence_has_no_negative_to_remove() -> None:
    objective = DCLR(DCLRParams(head=False), 8)
    objective(Views(draw(2, 1, 8), teacher=draw(1, 8)), rng())
    assert objective.measured()["removed_share"] == 0


def test_the_binary_loss_is_that_of_the_softmax() -> None:
    logits = 3 * draw(5, 9)
    positives = torch.eye(5, 9, dtype=torch.float64)
    expected = F.binary_cross_entropy(logits.softmax(dim=1), positives)
    torch.testing.assert_close(binary_cross_entropy(logits), expected)


def test_the_binary_loss_is_finite_where_a_share_rounds_to_one() -> None:
    """Use a negative with the whole softmax, whose loss is its lead in logits."""
    logits = torch.tensor([[0.0, 60.0, -20.0]], requires_grad=True)
    assert logits.softmax(dim=1)[0, 1] == 1
    loss = binary_cross_entropy(logits)
    assert loss.item() == pytest.approx((60 + 60) / 3)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and logits.grad[0].tolist() == pytest.approx([-2 / 3, 2 / 3, 0], abs=1e-6)


def test_nothing_is_left_to_distil_from_a_teacher_who_agrees() -> None:
    teacher = draw(5, 7)
    assert distillation(cosine_logits(teacher, teacher, TAU), teacher, TAU).item() == pytest.approx(0, abs=1e-12)
    assert distillation(cosine_logits(draw(5, 8), draw(5, 8, seed=1), TAU), teacher, TAU).item() > 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_how_a_sentence_is_like_itself_is_not_distilled(count: int) -> None:
    """Use one other sentence or none, so that there is no order to distil."""
    logits = cosine_logits(draw(count, 8), draw(count, 8, seed=1), TAU).requires_grad_()
    loss = distillation(logits, draw(count, 7), TAU)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.diagonal().tolist() == [0] * count
    assert (loss.item() > 0) == (count > 2) == bool(logits.grad.abs().sum() > 0)


@pytest.mark.parametrize(
    ("ablation", "teacher"),
    [
        *((None, True), ("no-noise", True), ("random-noise", True), ("reference", True)),
        *(("no-weighting", False), ("self-weighting", False), ("knowledge-distillation", True)),
    ],
)
def test_a_teacher_is_asked_for_only_where_it_has_a_say(ablation: str | None, teacher: bool) -> None:
    params = replace(DCLRParams(), **(RECIPE.ablations[ablation] if ablation else {}))
    assert DCLR(params, 8).needs == Needs(views=2, teacher=teacher)


@pytest.mark.parametrize(
    "changes",
    [
        *({"temperature": 0.0}, {"ascent_temperature": -1.0}, {"noise_ratio": -0.5}, {"ascent_steps": -1}),
        *({"ascent_rate": float("nan")}, {"threshold": 1.5}, {"distillation": -1.0}),
    ],
    ids="-".join,
)
def test_what_can_not_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        DCLRParams(**changes)
