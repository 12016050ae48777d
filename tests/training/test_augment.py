"""Tests of the augmentations: random draws, effects on tokens, and support of every model family."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.encoder.encoder import Encoder, dropout_off
from tests.models.test_families import FAMILIES, T5
from training.data import augment
from training.data.augment import (
    AUGMENTATIONS,
    RATES,
    Augmentation,
    cut_features,
    cut_tokens,
    draw_feature_order,
    draw_span_start,
    draw_swapped_order,
    draw_token_order,
    embeddings_changed,
    keep_span,
    shuffle_positions,
)

SENTENCES = ["The man can see the river.", "A dog.", "The teacher will read a book."]

lengths = st.lists(st.integers(1, 20), min_size=1, max_size=6)
rates = st.floats(0, 0.99)


def mask_of(lengths: list[int]) -> Tensor:
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(lengths=lengths, seed=st.integers(0, 99))
def test_an_order_moves_the_tokens_and_leaves_the_padding(lengths: list[int], seed: int) -> None:
    order = draw_token_order(mask_of(lengths), seeded(seed))
    for row, length in zip(order.tolist(), lengths, strict=True):
        assert sorted(row[:length]) == list(range(length))
        assert row[length:] == list(range(length, max(lengths)))


def test_every_order_is_as_likely_as_another() -> None:
    orders = draw_token_order(torch.ones(6000, 3, dtype=torch.long), seeded())
    counts = Counter(map(tuple, orders.tolist()))
    # The bound is four standard deviations.
    assert len(counts) == 6 and all(880 < count < 1120 for count in counts.values())


@given(lengths=lengths, rate=rates, seed=st.integers(0, 99))
def test_tokens_step_behind_the_next_that_stays(lengths: list[int], rate: float, seed: int) -> None:
    mask = mask_of(lengths)
    drawn = torch.rand(mask.shape, generator=seeded(seed))
    for row, length, draw in zip(
        draw_swapped_order(mask, rate, seeded(seed)).tolist(), lengths, drawn.tolist(), strict=True
    ):
        order, stepping = [], []
        for token in range(len(row)):
            if 0 < token < length - 2 and draw[token] < rate:
                stepping.append(token)
            else:
                order += [token, *stepping]
                stepping = []
        assert [row.index(place) for place in range(len(row))] == order
        assert {0: row[0], length - 1: row[length - 1]} == {0: 0, length - 1: length - 1}


def test_each_sentence_has_its_own_order_of_features() -> None:
    order = draw_feature_order(torch.zeros(50, 7, 8), seeded())
    assert order.shape == (50, 8) and order.sort(dim=1).values.eq(torch.arange(8)).all()
    assert len(set(map(tuple, order.tolist()))) == 50


@given(lengths=lengths, rate=rates, seed=st.integers(0, 99))
def test_one_span_of_the_tokens_is_kept(lengths: list[int], rate: float, seed: int) -> None:
    mask = mask_of(lengths)
    kept = keep_span(mask, draw_span_start(mask, rate, seeded(seed)), rate)
    for row, length in zip(kept.tolist(), lengths, strict=True):
        places = [place for place, one in enumerate(row) if one]
        assert len(places) == max(int(length * (1 - rate)), 1)
        assert places == list(range(places[0], places[-1] + 1)) and places[-1] < length


def test_a_span_may_begin_wherever_it_has_room() -> None:
    starts = draw_span_start(torch.ones(3000, 5, dtype=torch.long), 0.4, seeded())
    counts = starts.bincount()
    assert len(counts) == 3 and (counts - 1000).abs().max() < 110  # The bound is four standard deviations.


@given(lengths=lengths, rate=rates, seed=st.integers(0, 99))
def test_a_share_of_the_tokens_is_cut_whole_and_the_rest_left(lengths: list[int], rate: float, seed: int) -> None:
    mask = mask_of(lengths)
    embedded = 1 + torch.rand(*mask.shape, 4, generator=seeded(seed))
    cut = cut_tokens(embedded, mask, draw_token_order(mask, seeded(seed)), rate)
    gone = cut.eq(0).all(dim=2)
    assert torch.equal(cut[~gone], embedded[~gone])
    assert gone.sum(dim=1).tolist() == [int(rate * length) for length in lengths]
    assert not (gone & ~mask.bool()).any()


@given(dim=st.integers(1, 30), rate=rates)
def test_a_share_of_the_features_is_cut_in_every_token(dim: int, rate: float) -> None:
    embedded = 1 + torch.rand(3, 5, dim, generator=seeded())
    cut = cut_features(embedded, draw_feature_order(embedded, seeded()), rate)
    gone = cut.eq(0).all(dim=1)
    assert gone.sum(dim=1).tolist() == [int(rate * dim)] * 3
    assert torch.equal(cut, embedded * ~gone[:, None, :])


def test_a_token_takes_the_position_of_another() -> None:
    positions = torch.arange(2, 7).expand(2, 5)
    order = torch.tensor([[2, 0, 1, 3, 4], [4, 3, 2, 1, 0]])
    assert shuffle_positions(positions, order).tolist() == [[4, 2, 3, 5, 6], [6, 5, 4, 3, 2]]


@pytest.fixture(scope="module", params=[one for one in FAMILIES if one is not T5], ids=lambda family: family.name)
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("family")
    request.param.write(folder)
    return folder


shared = cache(Encoder.load)
"""Cached encoders, which no test changes."""


def encoder_of(folder: Path, pooling: str = "mean") -> tuple[Encoder, Tensor, Tensor]:
    """Return an encoder without dropout, and a batch with padding."""
    encoder = deepcopy(shared(folder, pooling=pooling)).eval()
    return encoder, *encoder.tensors(encoder.tokenizer.encode(SENTENCES))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_each_changes_every_sentence_and_then_is_gone(backbone: Path, name: str) -> None:
    for pooling in ("cls", "mean"):
        encoder, ids, mask = encoder_of(backbone, pooling)
        plain = encoder(ids, mask)
        augmented = Augmentation(name, 0.6 if name in RATES else None)(encoder, ids, mask, seeded())
        assert augmented.shape == plain.shape and torch.isfinite(augmented).all()
        assert ((augmented - plain).abs().amax(dim=1) > 1e-3).all()
        assert torch.equal(encoder(ids, mask), plain)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_same_seed_gives_the_same_vectors_whatever_the_padding_is(backbone: Path, name: str) -> None:
    encoder, ids, mask = encoder_of(backbone)
    once, again, other = (Augmentation(name)(encoder, ids, mask, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(once, again) and not torch.equal(once, other)
    elsewise = ids.masked_fill(mask == 0, encoder.backbone.config.vocab_size - 1)
    torch.testing.assert_close(Augmentation(name)(encoder, elsewise, mask, seeded(3)), once)


@pytest.mark.parametrize("name", RATES)
def test_a_rate_of_zero_is_the_plain_pass(backbone: Path, name: str) -> None:
    encoder, ids, mask = encoder_of(backbone)
    torch.testing.assert_close(Augmentation(name, 0.0)(encoder, ids, mask, seeded()), encoder(ids, mask))


def test_shuffled_into_the_old_order_it_is_the_plain_pass(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with a plain pass, so that each family's first position is checked."""
    encoder, ids, mask = encoder_of(backbone)

    def as_it_was(mask: Tensor, _rng: torch.Generator | None) -> Tensor:
        return torch.arange(mask.shape[1]).expand(mask.shape)

    monkeypatch.setattr(augment, "draw_token_order", as_it_was)
    torch.testing.assert_close(Augmentation("token-shuffling")(encoder, ids, mask), encoder(ids, mask))


def test_a_family_without_positions_and_embedding_layer_can_be_cut_to_spans_alone(tmp_path: Path) -> None:
    T5.write(tmp_path)
    encoder, ids, mask = encoder_of(tmp_path)
    assert torch.isfinite(Augmentation("span-cutoff")(encoder, ids, mask, seeded())).all()
    for name in set(AUGMENTATIONS) - {"span-cutoff"}:
        with pytest.raises(ValueError, match=r"t5 have no .*: span-cutoff would work"):
            Augmentation(name)(encoder, ids, mask, seeded())


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_gradient_passes_and_dropout_stays_on(tiny_backbone: Path, name: str) -> None:
    encoder, ids, mask = encoder_of(tiny_backbone)
    encoder.train()
    first, second = (Augmentation(name)(encoder, ids, mask, seeded()) for _ in range(2))
    assert not torch.equal(first, second)
    along = torch.linspace(-1, 1, first.shape[-1])  # Layer norm makes every sum 0.
    (first @ along).sum().backward()  # type: ignore[no-untyped-call]
    embeddings = encoder.backbone.get_parameter("embeddings.word_embeddings.weight")
    assert embeddings.grad is not None and embeddings.grad.abs().max() > 1e-3
    with dropout_off(encoder):
        assert torch.equal(*(Augmentation(name)(encoder, ids, mask, seeded()) for _ in range(2)))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_without_a_generator_it_is_repeated_with_torchs_own(tiny_backbone: Path, name: str) -> None:
    encoder, ids, mask = encoder_of(tiny_backbone)
    before = torch.get_rng_state()
    first = Augmentation(name)(encoder, ids, mask)
    assert not torch.equal(Augmentation(name)(encoder, ids, mask), first)
    torch.set_rng_state(before)
    assert torch.equal(Augmentation(name)(encoder, ids, mask), first)


@pytest.mark.slow
def test_a_compiled_backbone_is_cut_as_well(tiny_backbone: Path) -> None:
    encoder, ids, mask = encoder_of(tiny_backbone)
    cutoff = Augmentation("feature-cutoff", 0.5)
    expected = cutoff(encoder, ids, mask, seeded())
    encoder.backbone.compile(backend="eager", dynamic=True)
    plain = encoder(ids, mask)
    torch.testing.assert_close(cutoff(encoder, ids, mask, seeded()), expected)
    torch.testing.assert_close(encoder(ids, mask), plain)


def test_a_pass_that_fails_leaves_the_embeddings_alone(tiny_backbone: Path) -> None:
    encoder, ids, mask = encoder_of(tiny_backbone)
    plain = encoder(ids, mask)
    with pytest.raises(RuntimeError, match="no"), embeddings_changed(encoder, torch.zeros_like):
        raise RuntimeError("no")
    assert torch.equal(encoder(ids, mask), plain)


def test_a_backbone_without_the_place_for_it_is_refused(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, ids, mask = encoder_of(tiny_backbone)
    monkeypatch.setattr(encoder.backbone, "embeddings", None)
    with pytest.raises(ValueError, match="family bert have no embedding layer: token-shuffling, span-cutoff would"):
        Augmentation("feature-cutoff")(encoder, ids, mask)
    monkeypatch.setattr(encoder.backbone, "forward", lambda **_inputs: None)
    with pytest.raises(ValueError, match="family bert have no position ids"):
        Augmentation("token-shuffling")(encoder, ids, mask)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mirror",), "'mirror' is none of token-shuffling, token-swapping, token-cutoff, feature-cutoff, span-cutoff"),
        (("token-cutoff", 1.0), r"rate 1.0 is not a share"),
        (("span-cutoff", -0.1), r"rate -0.1 is not a share"),
        (("token-shuffling", 0.5), "token-shuffling has no rate"),
    ],
)
def test_what_can_not_be_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation(*arguments)
