from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.encoder.encoder import Encoder
from models.encoder.transform import Affine
from training.data.augment import Augmentation
from training.encoding import packing, views
from training.encoding.attention import use_fast_operations
from training.encoding.views import Teacher, ViewEncoder, in_batch_order, make_passes
from training.objectives.base import Needs, Views

SENTENCES = ["The man can see the river .", "A dog .", "The teacher will read a long book in the morning ."]


@pytest.fixture
def encoder(tiny_backbone: Path) -> Encoder:
    return Encoder.load(tiny_backbone, pooling="cls").train()


class Runs:
    """Recorder of the shapes of an encoder's inputs, and of whether dropout was on."""

    def __init__(self, encoder: nn.Module) -> None:
        self.seen: list[tuple[tuple[int, ...], bool]] = []
        encoder.register_forward_pre_hook(self._note)

    def _note(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.seen.append((tuple(inputs[0].shape), module.training))


def views_of(
    encoder: Encoder,
    needs: Needs,
    sentences: Sequence[str] = SENTENCES,
    *,
    most: int | None = None,
    autocast: torch.dtype | None = None,
    augmentation: Augmentation | None = None,
) -> Views:
    view_encoder = ViewEncoder(encoder, needs, autocast=autocast, augmentation=augmentation)
    passes = make_passes(encoder, encoder.tokenizer.encode(sentences), most=most)
    return view_encoder.split(in_batch_order(passes, view_encoder(passes)), None)


def rows(views: Tensor) -> Iterator[Tensor]:
    return iter(views.flatten(0, -2))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_dropout_views_of_a_pass_are_one_run_of_the_encoder(encoder: Encoder, count: int) -> None:
    runs = Runs(encoder)
    views = views_of(encoder, Needs(views=count))
    assert runs.seen == [((count * 3, 13), True)]
    assert views.noisy.shape == (count, 3, encoder.dim)
    assert views.clean is None and views.teacher is None


def test_every_row_has_a_dropout_mask_of_its_own(encoder: Encoder) -> None:
    vectors = list(rows(views_of(encoder, Needs(views=2), ["The same .", "The same ."]).noisy))
    assert all(not torch.equal(a, b) for i, a in enumerate(vectors) for b in vectors[:i])


@pytest.mark.parametrize("most", [None, 1, 2])
def test_views_are_in_the_order_of_the_sentences_whatever_the_passes(encoder: Encoder, most: int | None) -> None:
    encoder.eval()  # Without dropout, the views are equal to each other and to the vectors of the texts alone.
    views = views_of(encoder, Needs(views=2, clean=True), most=most)
    alone = torch.from_numpy(encoder.encode(SENTENCES))
    assert views.clean is not None
    for view in (*views.noisy, *views.clean):
        torch.testing.assert_close(view, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("most", "length"), [(512, 16), (14, 14)])
def test_padding_to_a_multiple_changes_no_vector_and_is_within_what_the_encoder_reads(
    most: int, length: int, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pad as on CUDA."""
    before = views_of(encoder, Needs(views=0, clean=True)).clean
    monkeypatch.setattr(views, "GRANULE", {"cpu": 8})
    monkeypatch.setattr(packing, "PASS_COST", {})  # One pass.
    monkeypatch.setattr(encoder, "max_length", most)
    (one,) = make_passes(encoder, encoder.tokenizer.encode(SENTENCES))
    assert one.input_ids.shape == one.attention_mask.shape == (3, length)
    after = views_of(encoder, Needs(views=0, clean=True)).clean
    assert before is not None and after is not None
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)


def test_the_clean_pass_has_no_dropout_and_has_gradient(encoder: Encoder) -> None:
    runs = Runs(encoder)
    first, second = (views_of(encoder, Needs(views=2, clean=True)) for _ in range(2))
    assert first.clean is not None and second.clean is not None
    assert [dropout for _, dropout in runs.seen] == [True, False, True, False]
    assert torch.equal(first.clean, second.clean) and not torch.equal(first.noisy, second.noisy)
    assert first.clean.requires_grad and encoder.training


def test_an_augmentation_changes_the_last_view_alone(encoder: Encoder) -> None:
    encoder.eval()
    plain = views_of(encoder, Needs(views=3))
    changed = views_of(encoder, Needs(views=3), augmentation=Augmentation("token-shuffling"))
    torch.testing.assert_close(changed.noisy[:2], plain.noisy[:2])
    assert ((changed.noisy[2] - plain.noisy[2]).abs().amax(dim=1) > 1e-3).all()
    alone = views_of(encoder, Needs(views=1), augmentation=Augmentation("feature-cutoff"))
    assert alone.noisy.shape == (1, 3, encoder.dim)


@pytest.mark.parametrize("count", [1, 2])
def test_beside_an_augmented_view_the_clean_one_is_itself(encoder: Encoder, count: int) -> None:
    needs = Needs(views=count, clean=True)
    views = views_of(use_fast_operations(encoder), needs, augmentation=Augmentation("feature-cutoff"))
    assert views.noisy.shape == (count, 3, encoder.dim)
    assert views.clean is not None
    expected = torch.from_numpy(encoder.encode(SENTENCES))
    torch.testing.assert_close(views.clean[0], expected, rtol=1e-4, atol=1e-5)
    assert all(((view - expected).abs().amax(dim=1) > 1e-3).all() for view in views.noisy)


def test_the_teacher_is_run_once_without_dropout_or_gradient_and_keeps_its_mode(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="mean").train()
    runs = Runs(encoder)
    vectors = Teacher(encoder)(encoder.tokenizer.encode(SENTENCES))
    assert runs.seen == [((3, 13), False)]
    assert not vectors.requires_grad and encoder.training
    torch.testing.assert_close(vectors, torch.from_numpy(encoder.encode(SENTENCES)), rtol=1e-4, atol=1e-5)


def test_views_are_float32_under_autocast(encoder: Encoder) -> None:
    encoder.eval()
    narrow = views_of(encoder, Needs(clean=True), autocast=torch.bfloat16)
    wide = views_of(encoder, Needs())
    assert narrow.noisy.dtype == torch.float32
    assert narrow.clean is not None and narrow.clean.dtype == torch.float32
    assert not torch.equal(narrow.noisy, wide.noisy)
    cosines = torch.cosine_similarity(narrow.noisy, wide.noisy, dim=-1)
    assert cosines.min().item() > 0.99


def test_what_a_transform_makes_of_vectors_is_float32_under_autocast(encoder: Encoder) -> None:
    encoder.attach(Affine.of(torch.zeros(encoder.dim), torch.eye(encoder.dim)))
    assert views_of(encoder, Needs(), autocast=torch.bfloat16).noisy.dtype == torch.float32


def test_float64_stays_float64(encoder: Encoder) -> None:
    assert views_of(encoder.double(), Needs()).noisy.dtype == torch.float64
