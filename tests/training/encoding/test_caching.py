from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from models.encoder.encoder import Encoder
from training.encoding.views import ViewEncoder, in_batch_order, make_passes
from training.objectives import OBJECTIVES
from training.objectives.base import Needs
from training.step import encode_twice

CPU = torch.device("cpu")


@pytest.mark.parametrize("clean", [False, True])
def test_gradients_are_those_of_the_whole_batch_dropout_included(
    tiny_backbone: Path, sentences: list[str], clean: bool
) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="mean").double().train()
    recipe = OBJECTIVES["simcse"]
    objective = recipe.build(recipe.presets["bert-base-uncased"].params, encoder.dim)
    cast(nn.Module, objective).double()
    view_encoder = ViewEncoder(encoder, Needs(views=2, clean=clean))
    passes = make_passes(encoder, encoder.tokenizer.encode(sentences[:40]), most=7)
    assert len(passes) > 5

    def gradient_of(pooled: Tensor) -> list[Tensor]:
        leaf = in_batch_order(passes, pooled.detach()).requires_grad_()
        loss = objective(view_encoder.split(leaf, None), torch.Generator())["info_nce"]
        (loss + leaf[-1].square().mean()).backward()
        assert leaf.grad is not None
        return [leaf.grad[:, each.rows] for each in passes]

    def grads(cached: bool) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(3)
        encoder.zero_grad()
        cast(nn.Module, objective).zero_grad()
        if cached:
            encode_twice(lambda each: view_encoder([each]), passes, gradient_of, device=CPU, no_sync=nullcontext)
        else:
            pooled = view_encoder(passes)
            pooled.backward(torch.cat(gradient_of(pooled), dim=1))
        after = torch.rand(3)
        weights = [*encoder.parameters(), *objective.parameters()]
        return [weight.grad.clone() for weight in weights if weight.grad is not None], after

    (whole, drawn), (parts, drawn_again) = grads(cached=False), grads(cached=True)
    assert len(whole) == len(parts) > 30
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-12)
    assert torch.equal(drawn, drawn_again), "what is drawn next does not depend on the caching"


def test_the_first_encoding_keeps_nothing_for_a_gradient() -> None:
    weight, kept = torch.ones(2, requires_grad=True), []

    def encode(part: Tensor) -> Tensor:
        kept.append((part * weight).requires_grad)
        return part * weight

    parts = [torch.ones(1, 1, 2), torch.ones(1, 1, 2)]
    encode_twice(encode, parts, lambda _pooled: list(torch.ones(2, 1, 1, 2)), device=CPU, no_sync=nullcontext)
    assert kept == [False, False, True, True]


def test_all_parts_but_the_last_keep_their_gradients_to_themselves() -> None:
    weight = torch.ones(2, requires_grad=True)
    entered = []

    class Apart(nullcontext[None]):
        def __enter__(self) -> None:
            entered.append(float(0 if weight.grad is None else weight.grad.sum()))

    parts = [torch.full((1, 1, 2), float(i)) for i in (1, 2, 3)]
    encode_twice(
        lambda part: part * weight,
        parts,
        lambda _pooled: list(torch.ones(3, 1, 1, 2)),
        device=CPU,
        no_sync=Apart,
    )
    assert entered == [0.0, 2.0] and weight.grad is not None and weight.grad.tolist() == [6.0, 6.0]
