from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from training.encoding.attention import Dropout, exempting, fast_dropout

RATES = [0.05, 0.1, 0.25, 0.5, 0.9]
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def kept(places: int, p: float) -> Tensor:
    return fast_dropout(torch.ones(places, dtype=torch.float64), p) != 0


def standard_errors(found: Tensor, expected: float, variance: float) -> float:
    """Return the number of standard errors between the mean of independent draws and its expected value."""
    return float((found.double().mean() - expected).abs() / (variance / found.numel()) ** 0.5)


@pytest.mark.parametrize("p", RATES)
def test_the_share_of_dropped_places_is_the_rate(p: float) -> None:
    assert standard_errors(~kept(400_000, p), p, p * (1 - p)) < 4


@pytest.mark.parametrize("p", RATES)
def test_every_one_of_the_places_that_share_a_draw_has_the_rate(p: float) -> None:
    for lane in (~kept(800_000, p)).view(-1, 4).T:
        assert standard_errors(lane, p, p * (1 - p)) < 4


@pytest.mark.parametrize("p", RATES)
@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 8, 64])
def test_places_are_independent(p: float, distance: int) -> None:
    dropped = ~kept(400_000, p)
    both = dropped[:-distance] & dropped[distance:]
    assert standard_errors(both, p**2, 3 * p**2 * (1 - p**2)) < 4  # neighbouring pairs share a place


@pytest.mark.parametrize("p", RATES)
def test_calls_are_independent(p: float) -> None:
    both = ~kept(400_000, p) & ~kept(400_000, p)
    assert standard_errors(both, p**2, p**2 * (1 - p**2)) < 4


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("p", RATES)
def test_what_is_kept_is_divided_by_its_probability(dtype: torch.dtype, p: float) -> None:
    x = torch.randn(1000, dtype=dtype)
    y = fast_dropout(x, p)
    assert y.dtype == dtype
    place = y != 0
    torch.testing.assert_close(y[place], x[place] / (1 - p), rtol=2e-4 if dtype.itemsize > 2 else 1e-2, atol=0)


def test_mean_and_variance_are_those_of_torchs() -> None:
    x = torch.full((400_000,), 3.0)
    for y in (fast_dropout(x, 0.1), nn.functional.dropout(x, 0.1)):
        assert standard_errors(y, 3, 1) < 4
        assert y.var().item() == pytest.approx(9 * 0.1 / 0.9, rel=0.02)


@given(st.lists(st.integers(0, 7), max_size=4), st.sampled_from(TYPES), st.sampled_from(RATES))
def test_any_shape_and_type_is_kept(shape: list[int], dtype: torch.dtype, p: float) -> None:
    y = fast_dropout(torch.ones(shape, dtype=dtype), p)
    assert y.shape == torch.Size(shape) and y.dtype == dtype
    assert torch.isfinite(y).all()


def test_the_gradient_passes_where_the_value_did_and_is_scaled_alike() -> None:
    x = torch.randn(37, 5, requires_grad=True)
    y = fast_dropout(x, 0.3)
    y.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(x.grad, (y / x).detach())


def test_gradients_are_those_of_finite_differences() -> None:
    def same_places(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return fast_dropout(x.transpose(0, 1), 0.4) ** 2

    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(same_places, (x,))


def test_the_argument_is_left_as_it_was() -> None:
    x = torch.randn(50)
    before = x.clone()
    fast_dropout(x, 0.5)
    assert torch.equal(x, before)


def test_at_rate_nought_nothing_is_dropped_and_nothing_drawn() -> None:
    x, state = torch.randn(50), torch.get_rng_state()
    assert fast_dropout(x, 0.0) is x
    assert torch.equal(torch.get_rng_state(), state)


def test_at_rate_one_all_is_dropped() -> None:
    x = torch.randn(500, requires_grad=True)
    y = fast_dropout(x, 1.0)
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert not y.any() and x.grad is not None and not x.grad.any()


def test_evaluation_is_the_identity_and_draws_nothing() -> None:
    x, state = torch.randn(50), torch.get_rng_state()
    assert Dropout(0.5).eval()(x) is x
    assert torch.equal(torch.get_rng_state(), state)


@given(st.integers(2, 4), st.integers(1, 30), st.sampled_from(TYPES))
def test_the_spared_share_of_the_rows_is_left_as_it_is_with_its_gradient(
    share: int, rows: int, dtype: torch.dtype
) -> None:
    x = torch.ones(1, share * rows, 5, dtype=dtype, requires_grad=True)
    module = nn.Sequential(Dropout(0.5))
    with exempting(module, share):
        y = module(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(y, x.grad)
    assert torch.equal(y[:, -rows:], x[:, -rows:])
    assert set(y[:, :-rows].flatten().tolist()) <= {0.0, 2.0}


def test_nothing_is_spared_after_the_block_even_if_it_failed() -> None:
    module = nn.Sequential(Dropout(0.5))
    with pytest.raises(ZeroDivisionError), exempting(module, 2):
        _ = 1 / 0
    assert not module(torch.ones(1, 2, 500))[:, 1].all()


def draws_nothing_new(draw: Callable[[], Tensor]) -> bool:
    state = torch.get_rng_state()
    first, second = draw(), draw()
    torch.set_rng_state(state)
    return torch.equal(first, draw()) and torch.equal(second, draw()) and not torch.equal(first, second)


def test_torchs_own_random_state_replays_it() -> None:
    x, module = torch.randn(101), Dropout(0.5)
    assert draws_nothing_new(lambda: module(x))


def test_the_number_of_threads_changes_nothing() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    one = kept(300_000, 0.1)
    try:
        torch.set_num_threads(2)
        torch.set_rng_state(state)
        assert torch.equal(one, kept(300_000, 0.1))
    finally:
        torch.set_num_threads(threads)
