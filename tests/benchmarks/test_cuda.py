"""What can be said of it without a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import cuda
from models.encoder import Encoder


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["benchmarks.cuda"])
    with pytest.raises(SystemExit) as ended:
        cuda.main()
    assert ended.value.code == 2 and "torch finds no CUDA device" in capsys.readouterr().err


def test_what_is_trained_has_the_shape_of_bert_base(tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(cuda.bert(tmp_path / "bert-base-uncased", tiny_backbone), pooling="cls")
    assert (encoder.dim, encoder.backbone.config.num_hidden_layers) == (768, 12)
    assert sum(weight.numel() for weight in encoder.backbone.parameters()) > 100e6
    assert encoder.tokenizer.encode(["the man can see"])[0].ids[0] == 2
