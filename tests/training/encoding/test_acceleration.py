"""Tests of fast operations in every model family: the function and the gradients stay the same."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer

from models.bundle.bundle import load
from models.encoder.encoder import Encoder, dropout_off
from models.export.export import export
from tests.conftest import soon
from training.encoding.attention import ATTENTION, Dropout, use_fast_operations
from training.encoding.lora import set_dropout

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": SHAPE,
    "roberta": SHAPE,
    "electra": {**SHAPE, "embedding_size": 16},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "mpnet": SHAPE,
    "modernbert": {
        **SHAPE,
        "local_attention": 8,
        "attention_dropout": 0.1,
        "mlp_dropout": 0.1,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
    },
}
SENTENCES = [
    "The man can see the river .",
    "A dog .",
    "The teacher will read a long book in the morning and a small cat could hear the rain on the mountain .",
]
Pair = tuple[Encoder, Encoder]


@pytest.fixture(params=soon(FAMILIES, "bert", "modernbert"))
def pair(request: pytest.FixtureRequest, tiny_backbone: Path) -> Pair:
    """Return an encoder as loaded, and the same encoder with fast operations."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_backbone)
    config = AutoConfig.for_model(request.param, vocab_size=len(tokenizer), **FAMILIES[request.param])
    backbone = AutoModel.from_config(config, attn_implementation="eager")  # type: ignore[no-untyped-call]
    plain = Encoder(backbone, tokenizer, pooling="mean", max_length=64)
    return plain, use_fast_operations(deepcopy(plain))


def tensors(encoder: Encoder) -> tuple[Tensor, Tensor]:
    return encoder.tensors(encoder.tokenizer.encode(SENTENCES))


def set_dropout_of(attention: nn.Module, rate: float) -> None:
    """Set the dropout rate, which is a number in ModernBERT and a module in other families."""
    if hasattr(attention, "attention_dropout"):
        attention.attention_dropout = rate  # type: ignore[assignment]
    else:
        assert isinstance(attention.dropout, Dropout)
        attention.dropout.p = rate


def gradients(encoder: Encoder, *, passes: int = 1) -> dict[str, Tensor]:
    """Return the gradients of a function of the vectors, added up over passes with one backward."""
    ids, mask = tensors(encoder)
    encoder.zero_grad()
    torch.stack([encoder(ids, mask).tanh().square().sum() for _ in range(passes)]).sum().backward()  # type: ignore[no-untyped-call]
    return {name: weight.grad for name, weight in encoder.named_parameters() if weight.grad is not None}


def test_vectors_are_the_same_bit_for_bit(pair: Pair) -> None:
    plain, quick = pair
    assert (plain.encode(SENTENCES) == quick.encode(SENTENCES)).all()
    ids, mask = tensors(plain)
    with dropout_off(plain), dropout_off(quick):
        assert torch.equal(plain(ids, mask), quick(ids, mask))


@pytest.mark.parametrize("passes", [1, 3])
def test_without_dropout_training_has_the_same_vectors_and_gradients(pair: Pair, passes: int) -> None:
    ids, mask = tensors(pair[0])
    for encoder in pair:
        set_dropout(encoder, 0.0)
        encoder.train()
    torch.testing.assert_close(pair[1](ids, mask), pair[0](ids, mask))
    expected, found = (gradients(encoder, passes=passes) for encoder in pair)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert gradient.layout == torch.strided
        torch.testing.assert_close(gradient, expected[name])


def test_gradients_of_several_backwards_add_up(pair: Pair) -> None:
    quick = pair[1].eval()
    expected = {name: 2 * gradient for name, gradient in gradients(quick).items()}
    gradients(quick)
    ids, mask = tensors(quick)
    quick(ids, mask).tanh().square().sum().backward()  # type: ignore[no-untyped-call]
    for name, gradient in expected.items():
        torch.testing.assert_close(quick.get_parameter(name).grad, gradient)


@pytest.mark.slow
def test_with_dropout_the_vectors_have_the_law_they_had(pair: Pair) -> None:
    ids, mask = (tensor[:1].repeat(1500, 1) for tensor in tensors(pair[0]))
    with torch.no_grad():
        plain, quick = (encoder.train()(ids, mask).double() for encoder in pair)
    errors = ((plain.var(dim=0) + quick.var(dim=0)) / len(plain)).sqrt()
    assert ((plain.mean(dim=0) - quick.mean(dim=0)).abs() / errors).max() < 4.5
    torch.testing.assert_close(quick.var(dim=0), plain.var(dim=0), rtol=0.35, atol=0)
    assert quick.var(dim=0).mean().item() == pytest.approx(plain.var(dim=0).mean().item(), rel=0.08)


def test_attention_weights_alone_can_be_dropped(pair: Pair) -> None:
    quick = pair[1].train()
    ids, mask = tensors(quick)
    set_dropout(quick, 0.0)
    assert torch.equal(quick(ids, mask), quick(ids, mask))
    for module in quick.modules():
        if any(hasattr(module, projection) for projection in ("query", "q", "q_lin", "Wqkv")):
            set_dropout_of(module, 0.5)
    assert not torch.equal(quick(ids, mask), quick(ids, mask))


def test_autocast_costs_vectors_and_gradients_a_few_roundings_to_bf16(pair: Pair) -> None:
    wide, quick = pair
    ids, mask = tensors(quick)
    for encoder in pair:
        set_dropout(encoder, 0.0)
        encoder.train()
    expected = gradients(wide)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vectors, found = quick(ids, mask), gradients(quick)
    assert (vectors - wide(ids, mask)).norm() < 2**-7 * vectors.norm()
    flat = [torch.cat([each[name].flatten() for name in expected]) for each in (expected, found)]
    assert (flat[1] - flat[0]).norm() < 2**-5 * flat[0].norm()


@pytest.mark.parametrize(("autocast", "first"), [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)])
def test_the_sum_that_runs_through_the_layers_is_bf16_under_bf16_alone(
    tiny_backbone: Path, autocast: torch.dtype, first: torch.dtype
) -> None:
    quick, seen = use_fast_operations(Encoder.load(tiny_backbone)).train(), []
    quick.backbone.get_submodule("encoder.layer.0").register_forward_pre_hook(
        lambda _module, inputs: seen.append(inputs[0].dtype)
    )
    with torch.autocast("cpu", dtype=autocast):
        quick(*tensors(quick))
    assert seen == [first]


def test_names_of_weights_and_the_mode_are_kept(pair: Pair) -> None:
    plain, quick = pair
    assert list(plain.state_dict()) == list(quick.state_dict())
    assert {name: module.training for name, module in plain.named_modules()} == {
        name: module.training for name, module in quick.named_modules()
    }


def test_what_is_saved_is_the_same(pair: Pair, tmp_path: Path) -> None:
    for name, encoder in zip(("plain", "quick"), pair, strict=True):
        encoder.save(tmp_path / name)
    for file in (tmp_path / "plain").iterdir():
        assert file.read_bytes() == (tmp_path / "quick" / file.name).read_bytes(), file.name


@pytest.mark.slow
def test_it_exports_to_the_same_graph(tiny_backbone: Path, tmp_path: Path) -> None:
    plain = Encoder.load(tiny_backbone, pooling="mean")
    quick = use_fast_operations(Encoder.load(tiny_backbone, pooling="mean")).train()
    for name, encoder in (("plain", plain), ("quick", quick)):
        export(encoder, tmp_path / name, name=name, backbone="tiny")
    plain_graph, quick_graph = (load(tmp_path / name).folder / "onnx" / "model.onnx" for name in ("plain", "quick"))
    assert plain_graph.read_bytes() == quick_graph.read_bytes()


def test_on_other_devices_only_attention_is_replaced(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone).to("meta")
    before = {name: type(module) for name, module in use_fast_operations(encoder).named_modules()}
    assert Dropout not in before.values()
    assert encoder.backbone.config._attn_implementation == ATTENTION
