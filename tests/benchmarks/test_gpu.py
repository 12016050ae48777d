"""What can be said of it without a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import cuda
from benchmarks.loops import PEERS
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


def test_contestants_take_turns(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, SimCSE alone of ours, two steps of each a round."""
    for name, value in (("DEVICE", "cpu"), ("OURS", ("simcse",)), ("STEPS", 2), ("ROUNDS", 1), ("WARMUP", 1)):
        monkeypatch.setattr(cuda, name, value)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a CPU")
    texts = [["the man can see the river", "a dog", "the old teacher"]] * 4
    found = cuda.measure(tiny_backbone, iter(texts))
    contestants = found["figures"]["contestants"]
    assert contestants.keys() == {"simcse", cuda.LAUNCHED, *PEERS} and found["device"] == "a CPU"
    assert all(figures["ms_a_step"] > 0 for figures in contestants.values())
    assert contestants["published"]["times_published"] == 1
    assert found["figures"].keys() == {"peak_flops_per_s", "contestants", "simcse_utilisation"}
