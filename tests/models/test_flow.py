from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.encoder.transform import LOG_SCALE_FACTOR, Flow


def flow_of(dim: int, levels: int, depth: int, seed: int) -> Flow:
    """Return a flow whose weights are all drawn at random, unlike at the start of training."""
    rng = torch.Generator().manual_seed(seed)
    flow = Flow(dim=dim, levels=levels, depth=depth, hidden=5).double()
    drawn = {
        name: 0.2 * torch.randn(weights.shape, generator=rng, dtype=torch.float64)
        for name, weights in flow.state_dict().items()
    }
    flow.load_state_dict(drawn)
    return flow


def inverse(flow: Flow, latents: torch.Tensor, level: int = 0) -> torch.Tensor:
    """Return the vectors whose latents at a level are `latents`: every layer is inverted, in reverse order."""
    x = latents
    if level < len(flow.levels) - 1:
        leaving, staying = latents.chunk(2, dim=-1)
        x = torch.cat([inverse(flow, staying, level + 1), leaving], dim=-1)
    for step in reversed(flow.steps(level)):
        first, second = x.chunk(2, dim=-1)
        coupling, actnorm = step.coupling, step.actnorm
        coupled = torch.cat([first, second - coupling.shift(coupling.hidden(first))], dim=-1).flip(-1)
        x = coupled * (-LOG_SCALE_FACTOR * actnorm.log_scale).exp() - actnorm.shift
    return x


shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99)).map(
    lambda drawn: (drawn[0] * 2 ** drawn[1], *drawn[1:])
)


@given(shape=shapes)
def test_the_volume_changes_as_the_jacobian_says(shape: tuple[int, int, int, int]) -> None:
    flow = flow_of(*shape)
    x = torch.linspace(-1, 1, flow.dim, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda one: flow(one[None])[0], x)  # type: ignore[no-untyped-call]
    _, log_det = torch.linalg.slogdet(jacobian)
    torch.testing.assert_close(flow.log_det(), log_det, rtol=1e-9, atol=1e-9)


@given(shape=shapes)
def test_latents_lead_back_to_their_vectors(shape: tuple[int, int, int, int]) -> None:
    flow = flow_of(*shape)
    x = torch.randn(6, flow.dim, generator=torch.Generator().manual_seed(shape[-1]), dtype=torch.float64)
    latents = flow(x)
    assert latents.shape == x.shape
    torch.testing.assert_close(inverse(flow, latents), x, rtol=1e-9, atol=1e-9)


def test_the_half_that_leaves_a_level_is_not_touched_by_the_next() -> None:
    flow = flow_of(16, levels=3, depth=2, seed=0)
    x = torch.randn(4, 16, dtype=torch.float64)
    before = flow(x)
    with torch.no_grad():
        for weights in flow.levels[1].parameters():
            weights.add_(0.1)
    after = flow(x)
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.isclose(before[:, 8:], after[:, 8:]).any(dim=0).all()


def test_every_coordinate_is_moved_by_training() -> None:
    flow = flow_of(16, levels=3, depth=3, seed=0)
    flow(torch.randn(4, 16, dtype=torch.float64)).square().sum().backward()
    assert all(weights.grad is not None and weights.grad.abs().sum() > 0 for weights in flow.parameters())


def test_a_width_that_can_not_be_halved_so_often_is_refused() -> None:
    with pytest.raises(ValueError, match="12 dimensions can't be halved 3 times"):
        Flow(dim=12, levels=3, depth=1, hidden=4)
