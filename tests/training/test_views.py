from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.encoder import Encoder
from training.objectives.base import Needs
from training.views import encode_views

SENTENCES = ["The man can see the river .", "A dog .", "The teacher will read a long book in the morning ."]


@pytest.fixture
def encoder(tiny_backbone: Path) -> Encoder:
    return Encoder.load(tiny_backbone, pooling="cls").train()


class Passes:
    """The shapes of what went through an encoder, and whether dropout was on."""

    def __init__(self, encoder: nn.Module) -> None:
        self.seen: list[tuple[tuple[int, ...], bool]] = []
        encoder.register_forward_pre_hook(self._note)

    def _note(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.seen.append((tuple(inputs[0].shape), module.training))


def rows(views: Tensor) -> Iterator[Tensor]:
    return iter(views.flatten(0, -2))


@pytest.mark.parametrize("count", [2, 3])
def test_all_dropout_views_are_one_padded_pass(encoder: Encoder, count: int) -> None:
    passes = Passes(encoder)
    views, tokens = encode_views(encoder, Needs(views=count), SENTENCES, max_length=8)
    assert passes.seen == [((count * 3, 8), True)]
    assert views.noisy.shape == (count, 3, encoder.dim)
    assert views.clean is None and views.teacher is None
    assert tokens == count * (8 + 5 + 8)


def test_every_row_has_a_dropout_mask_of_its_own(encoder: Encoder) -> None:
    views, _ = encode_views(encoder, Needs(views=2), ["The same .", "The same ."], max_length=32)
    vectors = list(rows(views.noisy))
    assert all(not torch.equal(a, b) for i, a in enumerate(vectors) for b in vectors[:i])


def test_views_are_in_the_order_of_the_sentences(encoder: Encoder) -> None:
    encoder.eval()  # without dropout the views are equal, and equal to the vectors of the texts alone
    views, _ = encode_views(encoder, Needs(views=2), SENTENCES, max_length=32)
    alone = torch.from_numpy(encoder.encode(SENTENCES))
    torch.testing.assert_close(views.noisy[0], alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(views.noisy[1], alone, rtol=1e-4, atol=1e-5)


def test_the_clean_pass_has_no_dropout_and_has_gradient(encoder: Encoder) -> None:
    passes = Passes(encoder)
    needs = Needs(views=2, clean=True)
    first, tokens = encode_views(encoder, needs, SENTENCES, max_length=32)
    second, _ = encode_views(encoder, needs, SENTENCES, max_length=32)
    assert first.clean is not None and second.clean is not None
    assert [dropout for _, dropout in passes.seen] == [True, False, True, False]
    assert torch.equal(first.clean, second.clean)
    assert first.clean.requires_grad and encoder.training
    assert tokens == 3 * sum(len(t) for t in encoder.tokenizer.encode(SENTENCES))


def test_the_teacher_is_frozen_and_keeps_its_mode(encoder: Encoder, tiny_backbone: Path) -> None:
    teacher = Encoder.load(tiny_backbone, pooling="mean").train()
    needs = Needs(views=2, teacher=True)
    views, _ = encode_views(encoder, needs, SENTENCES, max_length=32, teacher=teacher)
    assert views.teacher is not None and not views.teacher.requires_grad
    expected = torch.from_numpy(teacher.encode(SENTENCES))
    torch.testing.assert_close(views.teacher, expected, rtol=1e-4, atol=1e-5)
    assert teacher.training
    views.noisy.sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is None for weight in teacher.parameters())


def test_a_needed_teacher_that_is_not_there_is_an_error(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="teacher"):
        encode_views(encoder, Needs(teacher=True), SENTENCES, max_length=32)


def test_a_teacher_nobody_needs_is_not_run(encoder: Encoder, tiny_backbone: Path) -> None:
    teacher = Encoder.load(tiny_backbone)
    passes = Passes(teacher)
    encode_views(encoder, Needs(), SENTENCES, max_length=32, teacher=teacher)
    assert passes.seen == []


def test_views_are_float32_under_autocast(encoder: Encoder) -> None:
    encoder.eval()
    narrow, _ = encode_views(encoder, Needs(clean=True), SENTENCES, max_length=32, autocast=torch.bfloat16)
    wide, _ = encode_views(encoder, Needs(), SENTENCES, max_length=32)
    assert narrow.noisy.dtype == torch.float32
    assert narrow.clean is not None and narrow.clean.dtype == torch.float32
    assert not torch.equal(narrow.noisy, wide.noisy)
    cosines = torch.cosine_similarity(narrow.noisy, wide.noisy, dim=-1)
    assert cosines.min().item() > 0.99
