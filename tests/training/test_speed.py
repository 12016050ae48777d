from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from models.encoder.encoder import Encoder
from training.checkpoints.speed import FIGURES, OperationCount, SpeedMeter, matmul_peak
from training.data.batches import Tokeniser
from training.data.positives import title
from training.encoding import lora
from training.machine.devices import Devices
from training.objectives.base import Needs


def test_work_is_what_torch_counts(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="cls").eval()
    tokens = encoder.tokenizer.encode(["the man can see the river", "a woman will read this book"])
    assert {len(sentence) for sentence in tokens} == {8}
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        encoder(*encoder.tensors(tokens))
    assert OperationCount.of(encoder).forward([8, 8]) == counted.get_total_flops()


def test_what_is_frozen_has_no_gradient_to_compute(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="cls").eval()
    tokens = encoder.tokenizer.encode(["the man can see the river", "a woman will read this book"])
    lora.attach_adapter(encoder, 4, backbone=str(tiny_backbone))
    with FlopCounterMode(display=False) as counted:
        encoder(*encoder.tensors(tokens)).sum().backward()  # type: ignore[no-untyped-call]
    spared = 3 * 2 * 2 * 8 * 32 * 32  # what the embeddings, frozen too, would get from query, key and value
    spared += 3 * 2 * 2 * 8 * 32 * 4
    assert OperationCount.of(encoder).training([8, 8]) == counted.get_total_flops() + spared


def test_a_meter_counts_every_pass_and_a_backward_as_two(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone)
    batch = Tokeniser(encoder, encoder, max_length=32, own=Devices("cpu").rows)(["a dog .", "the man can see"])
    work = OperationCount(weights=10, attention=1)
    meter = SpeedMeter(needs=Needs(views=2, clean=True, teacher=True), work=work, teacher=work, peak=1000.0)
    forward = 2 * 10 * (5 + 6) + 4 * (25 + 36)
    figures = meter([(1, batch), (2, batch)], seconds=2.0)
    assert tuple(figures) == FIGURES
    assert figures["sentences_per_s"] == 2 and figures["tokens_per_s"] == 3 * 11
    assert figures["flops_per_s"] == pytest.approx(3 * 3 * forward + forward)
    assert figures["utilisation"] == pytest.approx(figures["flops_per_s"] / 1000)


def test_a_pass_without_dropout_encodes_both_texts_of_a_pair(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone)
    pair = Tokeniser(encoder, None, max_length=32, own=Devices("cpu").rows, positives=title)
    work = OperationCount(weights=10, attention=1)
    meter = SpeedMeter(needs=Needs(views=2, clean=True), work=work, teacher=None, peak=1.0)
    assert meter([(1, pair(["a dog .\nthe man can see"]))], seconds=1.0)["tokens_per_s"] == 2 * 11


def test_the_encoder_of_before_is_a_pass_forward_and_no_other_token(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone)
    batch = Tokeniser(encoder, encoder, max_length=32, own=Devices("cpu").rows)(["a dog .", "the man can see"])
    work = OperationCount(weights=10, attention=1)
    with_start, without = (
        SpeedMeter(needs=Needs(views=1, start=start), work=work, teacher=None, peak=1.0)([(1, batch)], 1.0)
        for start in (True, False)
    )
    assert with_start["flops_per_s"] == pytest.approx(4 / 3 * without["flops_per_s"])
    assert with_start["tokens_per_s"] == without["tokens_per_s"]


def test_what_is_recalled_is_no_work(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone)
    batch = Tokeniser(encoder, encoder, max_length=32, own=Devices("cpu").rows)(["a dog .", "the man can see"])
    work = OperationCount(weights=10, attention=1)
    needs = Needs(views=1, teacher=True, start=True)
    meter = SpeedMeter(needs=needs, work=work, teacher=work, peak=1.0, cached_after=7)
    forward = 2 * 10 * (5 + 6) + 4 * (25 + 36)
    assert [meter([(step, batch)], 1.0)["flops_per_s"] for step in (7, 8)] == [5 * forward, 3 * forward]
    assert meter([(7, batch), (8, batch)], 1.0)["flops_per_s"] == 8 * forward


def test_measuring_the_peak_draws_nothing() -> None:
    before = torch.get_rng_state()
    assert matmul_peak.__wrapped__(torch.device("cpu"), torch.float32, seconds=0.0) > 1e8
    assert torch.equal(torch.get_rng_state(), before)
