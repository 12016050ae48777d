from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.encoder.encoder import Encoder
from models.encoder.transform import Affine
from training.data.corpus import Corpus
from training.encoding.lora import set_dropout
from training.objectives.contrastive import cross_correlation, dimension_contrast
from training.postprocess import dcl
from training.postprocess.base import PostprocessError
from training.postprocess.dcl import DCLParams, dropout_views, fit, train


def draw_views(count: int, seed: int) -> Tensor:
    """Return noisy views (2, N, 8) with correlated dimensions."""
    rng = torch.Generator().manual_seed(seed)
    mix = torch.eye(8) + 0.5 * torch.ones(8, 8)
    clean = torch.randn(count, 8, generator=rng) @ mix
    return clean + 0.1 * torch.randn(2, count, 8, generator=rng)


def test_the_map_is_the_identity_at_first() -> None:
    matrix, losses = train([draw_views(64, 0)], 8, DCLParams(learning_rate=1e-9))
    torch.testing.assert_close(matrix, torch.eye(8), atol=1e-8, rtol=0)
    first, second = draw_views(64, 0)
    assert losses == [pytest.approx(dimension_contrast(first, second, 10.0).item())]


def test_each_batch_is_a_step_of_adam_along_its_own_gradient() -> None:
    batches, params = [draw_views(64, seed) for seed in range(4)], DCLParams(learning_rate=0.01, temperature=2.0)
    expected = torch.nn.Parameter(torch.eye(8))
    optimiser = torch.optim.Adam([expected], lr=0.01)
    wanted = []
    for first, second in batches:
        loss = dimension_contrast(first @ expected, second @ expected, 2.0)
        (expected.grad,) = torch.autograd.grad(loss, expected)
        optimiser.step()
        wanted.append(loss.item())
    found, losses = train(batches, 8, params)
    assert losses == pytest.approx(wanted, rel=1e-6)
    torch.testing.assert_close(found, expected.detach())


def test_it_is_fitted_to_the_whole_batches_of_every_epoch(
    encoder: Encoder, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    def noting(batches: Iterable[Tensor], dim: int, params: DCLParams) -> tuple[Tensor, list[float]]:
        seen.extend(tuple(batch.shape) for batch in batches)
        return torch.eye(dim), [0.0]

    monkeypatch.setattr(dcl, "train", noting)
    fit(encoder, corpus, DCLParams(epochs=2), 0, io.StringIO())
    assert seen == [(2, 64, 32)] * 6


def test_the_loss_that_is_told_is_of_the_last_batches(
    encoder: Encoder, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcl, "train", lambda _batches, dim, _params: (torch.eye(dim), [9.0, *[2.0] * 50, *[1.0] * 50]))
    facts = fit(encoder, corpus, DCLParams(), 0, io.StringIO()).facts
    assert facts == {"sentences": 240, "loss_at_first": 9.0, "loss": 1.5}


def test_training_decorrelates_the_dimensions_of_unseen_views() -> None:
    matrix, losses = train([draw_views(64, seed) for seed in range(300)], 8, DCLParams(learning_rate=0.01))
    first, second = draw_views(1000, 999)
    before, after = (
        cross_correlation(a, b, centred=True) for a, b in ((first, second), (first @ matrix, second @ matrix))
    )
    assert losses[-1] < losses[0]
    assert (after.sum() - after.trace()).abs() < 0.5 * (before.sum() - before.trace())


def test_views_differ_by_dropout_alone_and_leave_it_off(encoder: Encoder, sentences: list[str]) -> None:
    encoder.eval()
    ((first, second),) = dropout_views(encoder, [sentences[:10]])
    assert first.shape == second.shape == (10, 32)
    assert not torch.equal(first, second)
    assert not first.requires_grad
    assert not encoder.training


def test_it_is_an_affine_transform_without_a_shift(encoder: Encoder, corpus: Corpus) -> None:
    fitted = fit(encoder, corpus, DCLParams(), 0, io.StringIO())
    assert isinstance(fitted.transform, Affine)
    assert (fitted.transform.dim, fitted.transform.out) == (32, 32)
    assert not fitted.transform.mean.any()
    assert not torch.equal(fitted.transform.matrix, torch.eye(32))


def test_an_encoder_whose_views_nothing_tells_apart_is_refused_by_name(
    encoder: Encoder, corpus: Corpus, tiny_backbone: Path
) -> None:
    set_dropout(encoder, 0.0)
    with pytest.raises(PostprocessError, match=f"{tiny_backbone}: has no dropout"):
        fit(encoder, corpus, DCLParams(), 0, io.StringIO())


@pytest.mark.parametrize(("name", "value"), [("temperature", 0.0), ("batch_size", 1), ("epochs", 0)])
def test_a_parameter_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: {value}"):
        DCLParams(**{name: value})  # type: ignore[arg-type]
