from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig

from models.encoder.encoder import Encoder, dropout_off
from models.encoder.pooling import POOLINGS
from training.encoding.attention import PACKED, use_attention, use_fast_operations
from training.encoding.lora import set_dropout
from training.encoding.packing import GRANULE, encode_passes
from training.encoding.views import in_batch_order, make_passes

SENTENCES = ["The man can see the river .", "A dog .", "a", "The teacher will read a long book in the morning ."]
ARCHITECTURES = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}


@pytest.fixture(params=sorted(PACKED))
def encoder(request: pytest.FixtureRequest, tiny_backbone: Path) -> Encoder:
    """Return an encoder of each family, with the vocabulary of the tiny backbone."""
    base = AutoConfig.from_pretrained(tiny_backbone)
    sizes = {
        "vocab_size": base.vocab_size,
        "hidden_size": 32,
        "dim": 32,
        "embedding_size": 32,
        "num_hidden_layers": 2,
        "n_layers": 2,
        "num_attention_heads": 2,
        "n_heads": 2,
        "intermediate_size": 64,
        "hidden_dim": 64,
        "max_position_embeddings": 66,
        "initializer_range": 0.2,
        "pad_token_id": 0,
    }
    name = ARCHITECTURES[request.param]
    config = getattr(transformers, f"{name}Config")(**sizes)
    torch.manual_seed(0)
    backbone = getattr(transformers, f"{name}Model")(config)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_backbone)
    encoder = Encoder(backbone, tokenizer, pooling="mean", max_length=64)
    backbone.set_attn_implementation("eager")
    return encoder.double()


def vectors(encoder: Encoder, most: int | None, copies: int, *, clean: bool = False) -> Tensor:
    passes = make_passes(encoder, encoder.tokenizer.encode(SENTENCES), most=most)
    return in_batch_order(passes, encode_passes(encoder, passes, copies, clean=clean))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(("most", "copies"), [(1, 1), (2, 2)])
def test_packed_sentences_have_the_vectors_and_the_gradient_of_padded_ones(
    encoder: Encoder, pooling: str, most: int, copies: int
) -> None:
    encoder.pooling = pooling
    encoder.eval()
    ids, mask = encoder.tensors(encoder.tokenizer.encode(SENTENCES))
    weights = torch.randn(copies, len(SENTENCES), encoder.dim, dtype=torch.float64)

    def gradients(found: Tensor) -> list[Tensor]:
        encoder.zero_grad()
        (found * weights).sum().backward()  # type: ignore[no-untyped-call]
        return [weight.grad.clone() for weight in encoder.parameters() if weight.grad is not None]

    expected = encoder(ids, mask).expand(copies, -1, -1)
    wanted = gradients(expected)
    use_fast_operations(encoder)
    found = vectors(encoder, most, copies)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(gradients(found), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_positions_begin_after_the_padding_index_where_that_is_not_0(tiny_backbone: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_backbone)
    config = transformers.RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66,
        initializer_range=0.2,
        pad_token_id=1,
    )
    backbone = transformers.RobertaModel(config)
    encoder = Encoder(backbone, tokenizer, pooling="mean", max_length=64).double().eval()
    expected = encoder(*encoder.tensors(encoder.tokenizer.encode(SENTENCES)))
    torch.testing.assert_close(vectors(use_fast_operations(encoder), 2, 1)[0], expected, rtol=1e-9, atol=1e-9)


def test_all_passes_are_one_run_of_the_backbone(encoder: Encoder) -> None:
    runs = []
    use_fast_operations(encoder).backbone.register_forward_hook(lambda _module, _inputs, _output: runs.append(1))
    vectors(encoder, 1, 2)
    assert len(runs) == 1


def test_with_an_attention_that_knows_no_packing_each_pass_is_a_run(encoder: Encoder) -> None:
    runs = []
    encoder.backbone.register_forward_hook(lambda _module, _inputs, _output: runs.append(1))
    vectors(encoder, 1, 2)
    assert len(runs) == len(SENTENCES)


def test_copies_have_dropout_of_their_own(encoder: Encoder) -> None:
    first, second = vectors(use_fast_operations(encoder).train(), 2, 2)
    assert ((first - second).abs().amax(dim=1) > 1e-6).all()


def test_dropout_of_the_attention_weights_is_of_the_copies_alone(encoder: Encoder) -> None:
    set_dropout(use_fast_operations(encoder).train(), 0.0)
    for name, module in encoder.backbone.named_modules():
        if name.endswith(("attention.self.dropout", "attention.dropout")):
            cast(nn.Dropout, module).p = 0.5
    first, second, whole = vectors(encoder, 2, 2, clean=True)
    assert all(((a - b).abs().amax(dim=1) > 1e-6).all() for a, b in [(first, second), (first, whole), (second, whole)])
    with dropout_off(encoder):
        torch.testing.assert_close(whole[None], vectors(encoder, 2, 1), rtol=1e-9, atol=1e-9)


def test_dropout_reaches_every_token_of_the_copies_and_none_of_the_clean_one(encoder: Encoder) -> None:
    """Drop all elements, so that no token of a copy carries information."""
    set_dropout(use_fast_operations(encoder).train(), 0.0)
    cast(nn.Dropout, encoder.backbone.get_submodule("embeddings.dropout")).p = 1.0
    first, second, whole = vectors(encoder, 2, 2, clean=True)
    silent = torch.cat([first, second])
    torch.testing.assert_close(silent, silent[:1].expand_as(silent), rtol=1e-9, atol=1e-9)
    with dropout_off(encoder):
        torch.testing.assert_close(whole[None], vectors(encoder, 2, 1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_clean_copy_is_the_last_and_has_vectors_and_gradient_of_evaluation(
    encoder: Encoder, pooling: str, packed: bool
) -> None:
    encoder.pooling = pooling
    set_dropout(encoder, 0.5)
    encoder = (use_fast_operations(encoder) if packed else encoder).train()
    weights = torch.randn(len(SENTENCES), encoder.dim, dtype=torch.float64)

    def gradients(view: Tensor) -> list[Tensor]:
        encoder.zero_grad()
        (view * weights).sum().backward()  # type: ignore[no-untyped-call]
        return [weight.grad.clone() for weight in encoder.parameters() if weight.grad is not None]

    first, second, whole = vectors(encoder, 2, 2, clean=True)
    found = gradients(whole)
    with dropout_off(encoder):
        (expected,) = vectors(encoder, 2, 1)
        wanted = gradients(expected)
    torch.testing.assert_close(whole, expected, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert all(((a - b).abs().amax(dim=1) > 1e-6).all() for a, b in [(first, second), (first, whole), (second, whole)])


def test_where_dropout_is_torchs_own_a_clean_copy_has_none_either(encoder: Encoder) -> None:
    """Use torch's own dropout, as on a GPU, where only attention is replaced."""
    set_dropout(encoder, 0.5)
    use_attention(encoder.backbone)
    *_, whole = vectors(encoder.train(), 2, 2, clean=True)
    with dropout_off(encoder):
        torch.testing.assert_close(whole[None], vectors(encoder, 2, 1), rtol=1e-9, atol=1e-9)


def test_a_clean_copy_shares_the_run_of_the_others(encoder: Encoder) -> None:
    runs = []
    use_fast_operations(encoder).train().backbone.register_forward_hook(
        lambda _module, _inputs, _output: runs.append(1)
    )
    assert vectors(encoder, 1, 2, clean=True).shape == (3, len(SENTENCES), encoder.dim)
    assert len(runs) == 1
    (alone,) = vectors(encoder, 1, 0, clean=True)
    with dropout_off(encoder):
        torch.testing.assert_close(alone[None], vectors(encoder, 1, 1))


@pytest.mark.parametrize(("copies", "clean"), [(1, False), (2, False), (2, True)])
def test_a_run_is_filled_up_so_that_many_have_one_shape(encoder: Encoder, copies: int, clean: bool) -> None:
    shapes = []
    use_fast_operations(encoder).backbone.register_forward_hook(
        lambda _module, _inputs, output: shapes.append(output[0].shape[:2])
    )
    (sentence,) = encoder.tokenizer.encode(["A dog ."])
    full = GRANULE["cpu"] // len(sentence)
    for count in (1, full, full + 1, 2 * full):
        encode_passes(encoder, make_passes(encoder, [sentence] * count), copies, clean=clean)
    one, two = (granules * GRANULE["cpu"] * (copies + clean) for granules in (1, 2))
    assert shapes == [(1, one), (1, one), (1, two), (1, two)]


def test_where_cls_is_pooled_the_last_layer_ends_with_it_alone(encoder: Encoder) -> None:
    if encoder.backbone.config.model_type == "distilbert":
        pytest.skip("its layers are of another build")
    seen: list[int] = []
    layers = use_fast_operations(encoder).backbone.get_submodule("encoder.layer")
    for layer in layers.children():
        layer.get_submodule("output").register_forward_hook(
            lambda _module, _inputs, output: seen.append(output.shape[:-1].numel())
        )
    for pooling, last in (("cls", len(SENTENCES)), ("mean", GRANULE["cpu"])):
        encoder.pooling = pooling
        vectors(encoder, 1, 1)
        assert seen == [GRANULE["cpu"], last]
        seen.clear()
