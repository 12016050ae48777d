from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.bert.modeling_bert import eager_attention_forward as bert_attention

from training.encoding.attention import PackedLayout, attention

N, HEADS, L, D = 3, 2, 6, 4
Attention = Callable[..., tuple[Tensor, Tensor]]
EAGER: Attention = bert_attention


@pytest.fixture
def layer() -> nn.Module:
    """Return the module from which attention is called. Only its mode is used."""
    config = BertConfig(hidden_size=HEADS * D, num_attention_heads=HEADS)
    return BertSelfAttention(config)  # type: ignore[no-untyped-call]


def projections(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.randn(3, N, HEADS, L, D).to(dtype)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


def mask(dtype: torch.dtype = torch.float64) -> Tensor:
    """Return an additive mask (N, 1, 1, L). The second sentence has four tokens, and the third has one."""
    lengths = torch.tensor([6, 4, 1])
    padding = torch.arange(L) >= lengths[:, None]
    return torch.zeros(N, L, dtype=dtype).masked_fill(padding, torch.finfo(dtype).min)[:, None, None, :]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_without_dropout_it_is_the_eager_one_and_so_are_its_gradients(
    layer: nn.Module, masked: bool, scaling: float | None
) -> None:
    inputs = projections()
    results = []
    for function in (EAGER, attention):
        attended, weights = function(layer, *inputs, mask() if masked else None, scaling=scaling, dropout=0.0)
        results.append((attended, weights, *torch.autograd.grad(attended.square().sum(), inputs)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_in_evaluation_dropout_is_off(layer: nn.Module) -> None:
    layer.eval()
    inputs = projections()
    expected, _ = EAGER(layer, *inputs, mask(), dropout=0.0)
    found, _ = attention(layer, *inputs, mask(), dropout=0.5)
    assert torch.equal(found, expected)


def test_in_evaluation_dropout_is_off_under_autocast_and_for_packed_sentences_too(layer: nn.Module) -> None:
    layer.eval()
    inputs = projections(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole, dropped = (attention(layer, *inputs, None, dropout=rate)[0] for rate in (0.0, 0.5))
    assert torch.equal(whole, dropped)
    query, key, value = (x[:1] for x in inputs)
    parts = PackedLayout([torch.zeros(1, 1, 1, L)])
    whole, dropped = (attention(layer, query, key, value, None, dropout=rate, packed=parts)[0] for rate in (0.0, 0.5))
    assert torch.equal(whole, dropped)


def test_dropped_weights_are_nought_and_the_others_scaled(layer: nn.Module) -> None:
    inputs = projections()
    _, whole = attention(layer, *inputs, None, dropout=0.0)
    assert whole is not None
    attended, weights = attention(layer, *inputs, None, dropout=0.5)
    assert weights is not None
    kept = weights != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(weights[kept], 2 * whole[kept])
    torch.testing.assert_close(attended, (weights @ inputs[2]).transpose(1, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_padding_gets_no_weight_in_narrow_types(layer: nn.Module, dtype: torch.dtype) -> None:
    _, weights = attention(layer, *projections(dtype), mask(torch.float32), dropout=0.0)
    assert weights is not None
    assert weights.dtype == dtype
    assert not weights[1, ..., 4:].any() and not weights[2, ..., 1:].any()
    torch.testing.assert_close(weights.float().sum(-1), torch.ones(N, HEADS, L), rtol=0, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_that_may_attend_to_nothing_is_finite(layer: nn.Module, dtype: torch.dtype) -> None:
    """Use a window that contains only padding, as rows of ModernBERT can have."""
    nothing = torch.full((N, 1, L, L), torch.finfo(torch.float32).min)
    attended, _ = attention(layer, *projections(dtype), nothing, dropout=0.1)
    assert torch.isfinite(attended).all()


def test_a_row_that_may_attend_to_nothing_is_finite_however_low_its_scores(layer: nn.Module) -> None:
    query = torch.full((N, HEADS, L, D), 10.0, dtype=torch.float16)
    nothing = torch.full((N, 1, L, L), torch.finfo(torch.float32).min)
    attended, _ = attention(layer, query, -query, query, nothing, dropout=0.0)
    assert torch.equal(attended, query.transpose(1, 2))


def test_bf16_scores_are_as_near_to_the_truth_as_eagers_under_autocast(layer: nn.Module) -> None:
    wide = projections(torch.float64)
    truth, _ = EAGER(layer, *wide, mask(), dropout=0.0)
    query, key, value = (x.detach().bfloat16() for x in wide)
    errors = []
    for function in (EAGER, attention):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            attended, _ = function(layer, query, key, value, mask(torch.float32), dropout=0.0)
        errors.append((attended.double() - truth).norm().item())
    assert errors[1] < 1.2 * errors[0]
