"""Tests of students with some layers of their base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from models.bundle import adapter, bundle
from models.bundle.adapter import AdapterError
from models.encoder.encoder import Encoder, keep_layers
from models.errors import Refused
from models.export.extraction import cosines_between, extract
from training import cli
from training.config import ConfigError, from_preset
from training.encoding import lora
from training.machine.devices import Devices
from training.step import initial_state


def test_a_student_computes_the_layers_that_it_keeps(tiny_backbone: Path) -> None:
    whole, student = Encoder.load(tiny_backbone).eval(), Encoder.load(tiny_backbone).eval()
    keep_layers(student.backbone, [1])
    ids, mask = whole.tensors(whole.tokenizer.encode(["a cat", "no cat at all"]))
    with torch.inference_mode():
        # Hidden states of the whole base: the embeddings, and the output of each layer.
        embedded = cast(Any, whole.backbone).embeddings(input_ids=ids)
        additive = torch.where(mask.bool(), 0.0, torch.finfo(torch.float32).min)[:, None, None, :]
        expected = cast(Any, whole.backbone).encoder.layer[1](embedded, additive)
        (last,) = student.layers(ids, mask)
    torch.testing.assert_close(last[mask.bool()], expected[mask.bool()])
    assert student.backbone.config.num_hidden_layers == 1


@pytest.mark.parametrize("kept", [(2,), (-1,), (1, 0), (0, 0)])
def test_layers_that_are_not_there_or_out_of_order_are_refused(kept: tuple[int, ...], tiny_backbone: Path) -> None:
    with pytest.raises(Refused, match=r"^layers: .*: must be ascending numbers from 0 to 1 without repetition$"):
        keep_layers(Encoder.load(tiny_backbone).backbone, kept)


def test_a_family_whose_layers_differ_is_refused(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone)
    encoder.backbone.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(Refused, match="layers: layers of a bert can't be removed"):
        keep_layers(encoder.backbone, [1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": (), "pooling": "cls"}, "pooling: cls needs layers"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_preset("simcse").override(changes)


@pytest.mark.parametrize("dropout", [None, 0.1])
def test_an_objective_of_dropout_refuses_an_encoder_without_layers(dropout: float | None, tiny_backbone: Path) -> None:
    config = from_preset("simcse", backbone=str(tiny_backbone)).override({"layers": (), "pooling": "mean"})
    config = config.override({"dropout": dropout, "device": "cpu", "precision": "fp32"})
    with pytest.raises(ConfigError, match=r"^layers: .* has no dropout.*: use the objective static$"):
        initial_state(config, Devices("cpu"), None)


@pytest.mark.slow
def test_any_bundle_teaches_a_student_whose_bundle_is_like_any_other(
    tiny_backbone: Path, other_bundle: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "distillation", "--backbone", str(tiny_backbone), "--corpus", str(corpus_file)]
    command += ["--teacher", str(other_bundle), "--preset", "minilm", "--max-steps", "30", "--seed", "0"]
    command += ["--set", "learning_rate=1e-3", "--set", "batch_size=16", "--set", "eval_every=15"]
    assert cli.main([*command, "--set", "layers=1"]) == 0
    lines = [json.loads(line) for line in Path("runs/distillation/metrics.jsonl").read_text().splitlines()]
    losses = [line["teacher"] + line["start"] for line in lines if line["kind"] == "train"]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    student = Encoder.load("artifacts/distillation")
    assert len(cast(Any, student.backbone).encoder.layer) == 1
    with pytest.raises(AdapterError, match=r"has 1 layers, and its base .* has 2: name the layers"):
        extract("artifacts/distillation", tmp_path / "adapter", base=str(tiny_backbone), rank=2)


@pytest.mark.slow
def test_a_run_trains_the_adapter_of_such_a_student(
    tiny_backbone: Path, other_bundle: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "distillation", "--backbone", str(tiny_backbone), "--corpus", str(corpus_file)]
    command += ["--teacher", str(other_bundle), "--preset", "minilm", "--max-steps", "6", "--set", "similarity=4"]
    assert cli.main([*command, "--set", "layers=1", "--set", "adapter_rank=4", "--set", "learning_rate=1e-3"]) == 0
    trained, kept = Encoder.load("artifacts/distillation"), Path("runs/distillation/adapter")
    assert json.loads((kept / "adapter_config.json").read_text())["layer_replication"] == [[1, 2]]
    merged = Encoder.load(kept)
    assert merged.backbone.config.num_hidden_layers == 1
    assert cosines_between(trained, merged)[1] > 0.99999
    foretold, made = adapter.load(kept).manifest, bundle.load(Path("artifacts/distillation")).manifest
    assert foretold is not None and foretold.fingerprint == made.fingerprint
    with pytest.raises(ConfigError, match="has no linear layers"):
        lora.load_for_training(
            from_preset("static", backbone=str(tiny_backbone), preset="minilm").override({"adapter_rank": 4}),
            torch.device("cpu"),
        )


def test_a_run_is_described_as_before_unless_it_says_layers() -> None:
    config = from_preset("simcse")
    assert not {"layers", "matryoshka"} & json.loads(config.to_json()).keys()
    changed = config.override({"layers": (0, 2), "matryoshka": (64,)})
    assert type(config).from_json(changed.to_json()) == changed
