from __future__ import annotations

import io
import math
from copy import deepcopy

import pytest
import torch
from torch import Tensor

from models.encoder.encoder import Encoder
from models.encoder.transform import Flow
from training.data.corpus import Corpus
from training.postprocess.base import PostprocessError
from training.postprocess.flow import FlowParams, bits_per_dim, fit, initialise, train


def draw(count: int, seed: int) -> Tensor:
    """Return vectors (N, 16) around 3 with scales from 0.1 to 10. The second half nearly follows from the first."""
    half = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return torch.cat([half, half.abs() + 0.1 * half.flip(0)], dim=1) * torch.logspace(-1, 1, 16) + 3


@pytest.fixture
def flow() -> Flow:
    return Flow(dim=16, levels=2, depth=2, hidden=8)


def test_a_flow_that_does_nothing_has_the_bits_of_a_standard_normal(flow: Flow) -> None:
    torch.nn.init.zeros_(flow.get_parameter("levels.0.0.coupling.shift.weight"))
    with torch.no_grad():
        for weights in flow.parameters():
            weights.zero_()
    x = draw(7, seed=0)
    normal = torch.distributions.Normal(0, 1)
    expected = -normal.log_prob(x).sum(1).mean() / (16 * math.log(2))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(bits_per_dim(flow, x), expected)


def test_bits_per_dim_are_those_of_the_density(flow: Flow) -> None:
    """Use a flow of scales alone, whose density is a normal distribution with the inverse scales."""
    x = draw(2000, seed=1)
    initialise(flow, x)
    deviations = torch.distributions.Normal(x.mean(0), x.std(0))
    expected = -deviations.log_prob(x).sum(1).mean() / (16 * math.log(2))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(bits_per_dim(flow, x), expected, rtol=1e-3, atol=1e-3)


def test_the_first_batch_becomes_standard(flow: Flow) -> None:
    first = draw(32, seed=0)
    initialise(flow, first)
    latents = flow(first)
    torch.testing.assert_close(latents.mean(0), torch.zeros(16), atol=1e-5, rtol=0)
    torch.testing.assert_close(latents.var(0, correction=0), torch.ones(16), atol=1e-3, rtol=0)


def test_hidden_weights_begin_as_glows_do() -> None:
    flow = Flow(dim=64, levels=2, depth=2, hidden=32)
    initialise(flow, torch.randn(64, 64))
    hidden = [weight.flatten() for name, weight in flow.named_parameters() if ".hidden." in name and weight.ndim == 2]
    assert torch.cat(hidden).std().item() == pytest.approx(0.05, rel=0.05)


def test_training_makes_unseen_vectors_likelier(flow: Flow) -> None:
    unseen = draw(500, seed=1)
    batches = list(draw(3200, seed=0).chunk(100))
    initialise(flow, batches[0])
    before = bits_per_dim(flow, unseen).item()
    bits = train(flow, batches, FlowParams())
    assert len(bits) == 100
    assert bits_per_dim(flow, unseen).item() < before - 0.05


@pytest.mark.parametrize("clip_norm", [1e-8, 1e8])
def test_each_batch_is_a_clipped_step_of_adamw_along_its_own_gradient(flow: Flow, clip_norm: float) -> None:
    batches = draw(160, seed=0).chunk(4)
    params = FlowParams(learning_rate=0.01, weight_decay=0.5, clip_norm=clip_norm)
    expected = deepcopy(flow)
    torch.manual_seed(5)
    bits = train(flow, batches, params)
    torch.manual_seed(5)
    deviation = 1e-3 * batches[0].std(0).mean()
    initialise(expected, batches[0] + deviation * torch.randn_like(batches[0]))
    optimiser = torch.optim.AdamW(expected.parameters(), lr=0.01, weight_decay=0.5)
    wanted = []
    for batch in batches:
        loss = bits_per_dim(expected, batch + deviation * torch.randn_like(batch))
        gradients = torch.autograd.grad(loss, list(expected.parameters()))
        length = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for weight, gradient in zip(expected.parameters(), gradients, strict=True):
            weight.grad = gradient * min(1.0, clip_norm / length.item())
        optimiser.step()
        wanted.append(loss.item())
    assert bits == pytest.approx(wanted, rel=1e-5)
    for found, weight in zip(flow.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, weight, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_constant_coordinate_neither_overflows_nor_makes_noise_loud(flow: Flow) -> None:
    constant = draw(6400, seed=0)
    constant[:, [3, 12]] = 0.25
    bits = train(flow, constant.chunk(200), FlowParams(learning_rate=0.01))
    assert all(map(math.isfinite, bits))
    jitter = constant[:50].clone()
    jitter[:, [3, 12]] *= 1 + 1e-7
    torch.testing.assert_close(flow(jitter), flow(constant[:50]), atol=1e-3, rtol=0)


def test_a_width_that_can_not_be_halved_is_refused(encoder: Encoder, corpus: Corpus) -> None:
    with pytest.raises(PostprocessError, match="32 dimensions can't be halved 6 times"):
        fit(encoder, corpus, FlowParams(levels=6), 0, io.StringIO())


@pytest.mark.slow
def test_a_flow_that_diverges_says_so(encoder: Encoder, corpus: Corpus) -> None:
    with pytest.raises(PostprocessError, match=r"diverged at learning_rate 1e\+30"):
        fit(encoder, corpus, FlowParams(learning_rate=1e30), 0, io.StringIO())


@pytest.mark.slow
def test_epochs_are_passes_over_the_corpus(encoder: Encoder, corpus: Corpus) -> None:
    def bits(epochs: int) -> float:
        torch.manual_seed(0)
        fitted = fit(encoder, corpus, FlowParams(epochs=epochs), 0, io.StringIO())
        return fitted.facts["bits_per_dim"]

    assert bits(4) < bits(1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("levels", 0), ("hidden", 0), ("batch_size", 1), ("learning_rate", 0.0), ("weight_decay", -0.1)],
)
def test_a_parameter_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: {value}"):
        FlowParams(**{name: value})  # type: ignore[arg-type]
