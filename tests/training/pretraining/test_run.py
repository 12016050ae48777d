"""Tests of whole pre-training runs by the command."""

from __future__ import annotations

import json
import math
import random
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, processors
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from models.encoder.encoder import Encoder
from tests.training.pretraining.runs import TINY, Capture, call, metrics
from training.checkpoints import checkpoint
from training.checkpoints.speed import FIGURES
from training.machine.devices import Devices
from training.pretraining.run import RECORD, Step


def test_a_run_leaves_a_record_and_a_model_that_encoders_are_trained_from(
    small: list[str], corpus_file: Path, capsys: Capture
) -> None:
    assert call(*small) == 0
    out, err = capsys.readouterr()
    assert out == "artifacts/mlm: isosphere train simcse --backbone artifacts/mlm\n"
    assert "a BERT of 1 layers, 32 wide, 0.0 million weights: 228 sentences" in err and "step 6/6: loss" in err
    lines = metrics("runs/mlm")
    assert [(line["kind"], line["step"]) for line in lines if line["kind"] == "evaluation"] == [
        ("evaluation", step) for step in (0, 4, 6)
    ]
    steps = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in steps] == list(range(1, 7))
    assert steps[0].keys() == {"kind", "step", "loss", "accuracy", "gradient_norm", "learning_rate"}
    first = json.loads(Path("runs/mlm/metrics.jsonl").read_text().splitlines()[1])
    assert first.keys() >= set(FIGURES) and first["tokens_per_s"] > first["sentences_per_s"] > 0
    kept = json.loads(Path("artifacts/mlm", RECORD).read_text())
    assert kept["curve"] == [{k: v for k, v in line.items() if k != "kind"} for line in lines if "masked_loss" in line]
    assert kept["config"]["width"] == 32 and kept["corpus"]["held_out"] == 12
    assert json.loads(Path("runs/mlm/environment.json").read_text())["precision"] == "fp32"
    assert f"{kept['curve'][-1]['masked_loss']:.4f} nats" in Path("artifacts/mlm/README.md").read_text()

    mlm, report = AutoModelForMaskedLM.from_pretrained("artifacts/mlm", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    encoder = Encoder.load("artifacts/mlm", pooling="mean")
    assert encoder.max_length == 32
    ours, theirs = (each.get_input_embeddings().state_dict()["weight"] for each in (encoder.backbone, mlm))
    assert torch.equal(ours, theirs)
    assert (
        call(
            *("train", "simcse", "--backbone", "artifacts/mlm", "--corpus", str(corpus_file), "--max-steps", "1"),
            *("--set", "batch_size=8", "--set", "precision=fp32", "--set", "device=cpu"),
        )
        == 0
    )
    assert json.loads(Path("artifacts/simcse/manifest.json").read_text())["backbone"] == "artifacts/mlm"


@pytest.mark.slow
@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(
    small: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(*small, "--out", "artifacts/whole") == 0
    assert call(*small, "--out", "artifacts/again") == 0
    step = Step.__call__

    def pressed(self: Step, *rest: Any) -> dict[str, torch.Tensor]:
        if self._state.step == 2:
            signal.raise_signal(signal.SIGINT)
        return step(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", pressed)
        assert call(*small, "--out", "artifacts/cut") == 130
    assert "stopped after step 3 of 6; resume with the same command and --resume" in capsys.readouterr().err
    assert not Path("artifacts/cut").exists()
    # The run is killed once more, without a checkpoint.
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Step, "__call__", lambda self, *rest: 1 / 0 if self._state.step == 5 else step(self, *rest))
        call(*small, "--out", "artifacts/cut", "--resume")
    assert call(*small, "--out", "./artifacts/cut", "--resume") == 0
    assert "from step 4" in capsys.readouterr().err
    assert metrics("runs/whole") == metrics("runs/again") == metrics("runs/cut")
    whole, cut = (load_file(f"artifacts/{name}/model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(weight, cut[name]) for name, weight in whole.items())


@pytest.mark.slow
def test_what_is_left_of_a_partly_removed_run_is_not_resumed(small: list[str]) -> None:
    assert call(*small) == 0
    before = metrics("runs/mlm")
    Path("runs/mlm/config.json").unlink()
    assert call(*small, "--seed", "7") == 0
    after = metrics("runs/mlm")
    assert len(after) == len(before) and after != before


@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_ctrl_c_in_the_last_step_comes_too_late(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step.__call__

    def pressed(self: Step, *rest: Any) -> dict[str, torch.Tensor]:
        if self._state.step == 5:
            signal.raise_signal(signal.SIGINT)
        return step(self, *rest)

    monkeypatch.setattr(Step, "__call__", pressed)
    assert call(*small) == 0
    assert Path("artifacts/mlm", RECORD).exists()


def test_the_time_of_an_evaluation_is_no_steps(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    take = Step.__call__

    def taken(self: Step, *rest: Any) -> dict[str, torch.Tensor]:
        nonlocal now
        now += 1
        return take(self, *rest)

    def judged(*_: Any) -> dict[str, float]:
        nonlocal now
        now += 100
        return {"masked_loss": 1.0, "masked_accuracy": 0.0}

    monkeypatch.setattr(Step, "__call__", taken)
    monkeypatch.setattr("training.pretraining.run.evaluate", judged)
    monkeypatch.setattr("training.loop.time", SimpleNamespace(perf_counter=lambda: now))
    assert call(*small) == 0
    lines = map(json.loads, Path("runs/mlm/metrics.jsonl").read_text().splitlines())
    speeds = [line["sentences_per_s"] for line in lines if line["kind"] == "train"]
    assert len(speeds) == 6 and min(speeds) >= 8, "a step takes 8 sequences and a second"


@pytest.mark.slow
def test_what_a_neighbour_determines_is_learnt(tiny_backbone: Path, tmp_path: Path) -> None:
    """Train on pairs of words: "house" always follows "red". Without the neighbour, the chance is one in 8."""
    draw = random.Random(0)
    pairs = [
        *("red house", "green door", "blue window", "white table"),
        *("cold rain", "hot fire", "old tree", "long river"),
    ]
    lines = {" ".join(draw.choices(pairs, k=3)) for _ in range(1500)}  # Most of the 512 tokens.
    corpus = tmp_path / "pairs.txt"
    corpus.write_text("".join(f"{line}\n" for line in sorted(lines)))
    settings = [*TINY, "width=64", "dropout=0", "batch_size=32", "steps=120", "eval_every=120", "learning_rate=0.005"]
    arguments = (word for setting in settings for word in ("--set", setting))
    assert call("pretrain", "--corpus", str(corpus), "--tokenizer", str(tiny_backbone), *arguments) == 0
    before, after = (line for line in metrics("runs/mlm") if line["kind"] == "evaluation")
    assert before["masked_accuracy"] < 0.2
    assert after["masked_accuracy"] > 0.7, "but where the neighbour is hidden, too"
    assert after["masked_loss"] < 0.4 * before["masked_loss"]
    losses = [line["loss"] for line in metrics("runs/mlm") if line["kind"] == "train"]
    assert sum(losses[-20:]) < 0.4 * sum(losses[:20])


def test_a_folder_with_a_blank_is_quoted_in_the_command_that_takes_it(small: list[str], capsys: Capture) -> None:
    assert call(*small, "--out", "artifacts/p e") == 0
    command = "isosphere train simcse --backbone 'artifacts/p e'"
    assert capsys.readouterr().out == f"artifacts/p e: {command}\n"
    assert f"`{command}`" in Path("artifacts/p e/README.md").read_text()


@pytest.mark.parametrize(("chunk", "alone", "recorded"), [(None, True, True), (4, True, False), (None, False, False)])
def test_a_step_is_recorded_where_it_is_whole_and_cudas_alone(
    chunk: int | None, alone: bool, recorded: bool, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    begin = Step.__init__

    def begun(self: Step, *given: Any, record: bool, **more: Any) -> None:
        asked.append(record)
        begin(self, *given, **more)  # Steps are launched, because there is no CUDA device.

    monkeypatch.setattr(Step, "__init__", begun)
    monkeypatch.setattr(Devices, "single_cuda", alone)
    assert call(*small, *(["--set", f"chunk_size={chunk}"] if chunk else [])) == 0
    assert asked == [recorded]


def test_a_loss_that_is_no_number_stops_the_run(
    small: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step.__call__

    def broken(self: Step, batch: Any, learning_rate: float) -> dict[str, torch.Tensor]:
        values = step(self, batch, learning_rate)
        return {**values, "loss": values["loss"] * float("nan")} if self._state.step == 4 else values

    monkeypatch.setattr(Step, "__call__", broken)
    assert call(*small) == 1
    assert "step 5: loss nan, accuracy" in capsys.readouterr().err
    assert len([line for line in metrics("runs/mlm") if line["kind"] == "train"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "layers=0"], "layers: 0 is not above 0"),
        (["--set", "layers=six"], "--set layers=six: expected a whole number"),
        (["--set", "depth=6"], "--set depth=6: 'depth' is none of"),
        (["--set", "heads=5"], "heads: 5 heads do not divide a width of 384"),
        (["--set", "share=1"], "share: 1.0 is not greater than 0 and less than 1"),
        (["--set", "dropout=1"], "dropout: 1.0 is not at least 0 and less than 1"),
        (["--set", "warmup=1"], "warmup: 1.0 is not at least 0 and less than 1"),
        (["--set", "max_length=2"], "max_length: 2 leaves no room"),
        (["--set", "precision=fp16"], "expected one of auto, fp32, bf16"),
        (["--set", "device=abacus"], "device 'abacus'"),
        (["--seed", "-1"], "seed: -1 is below 0"),
        (["--seed", str(1 << 63)], "has more than 63 bits"),
        (["--corpus", "nowhere.txt"], "nowhere.txt: No such file or directory"),
        (["--tokenizer", "./nowhere"], "nowhere: no such folder"),
        (["--resume"], "runs/mlm contains no run"),
    ],
)
def test_bad_options_are_one_clear_line(arguments: list[str], message: str, capsys: Capture, corpus_file: Path) -> None:
    assert call("pretrain", "--corpus", str(corpus_file), *arguments) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_tokenizer_without_word_pieces_is_refused(corpus_file: Path, tmp_path: Path, capsys: Capture) -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "[CLS]": 1}, unk_token="a"))
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "words")  # type: ignore[no-untyped-call]
    (tmp_path / "words" / "config.json").write_text("{}")
    assert call("pretrain", "--corpus", str(corpus_file), "--tokenizer", "./words") == 2
    assert "tokenizer: ./words: not a WordPiece tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize("left", [0, 1])
def test_a_run_that_ended_leaves_its_model_again_though_its_metrics_were_lost(left: int, small: list[str]) -> None:
    assert call(*small) == 0
    file, page = Path("runs/mlm/metrics.jsonl"), Path("artifacts/mlm/README.md")
    whole = page.read_text()
    assert "nats per masked token" in whole
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:left]) + b"\0" * 400)  # Power loss leaves this state.
    assert call(*small, "--resume") == 0
    assert len(json.loads(Path("artifacts/mlm", RECORD).read_text())["curve"]) == left
    assert page.read_text() == re.sub(
        r"On 12 held-out sentences: .*?predicted correctly\. ", "", whole, flags=re.DOTALL
    )


def test_metrics_are_on_disk_before_the_checkpoint_that_follows_them(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    save = checkpoint.save

    def saved(*arguments: Any, **named: Any) -> None:
        told.append("checkpoint")
        save(*arguments, **named)

    monkeypatch.setattr("training.checkpoints.record.fsync", lambda file: told.append(file.name))
    monkeypatch.setattr(checkpoint, "save", saved)
    assert call(*small) == 0
    assert told == 2 * ["metrics.jsonl", "checkpoint"]


def test_a_model_that_an_update_has_broken_is_not_kept(
    small: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Break the weights by an update. The held-out loss shows it first."""
    losses = iter([10.0, math.nan])
    monkeypatch.setattr(
        "training.pretraining.run.evaluate", lambda *_: {"masked_loss": next(losses), "masked_accuracy": 0.0}
    )
    assert call(*small) == 1
    assert "masked_loss nan, masked_accuracy 0.0; start a new run with a lower learning_rate" in capsys.readouterr().err
    assert not Path("runs/mlm/checkpoint.safetensors").exists()


def test_a_checkpoint_of_another_run_is_refused(small: list[str], corpus_file: Path, capsys: Capture) -> None:
    assert call(*small) == 0
    checkpoint = Path("runs/mlm/checkpoint.safetensors")
    corpus = Path("corpus.txt")
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    assert call(*small, "--resume") == 2
    assert "checkpoint.safetensors: not a checkpoint of this run" in capsys.readouterr().err
    checkpoint.write_bytes(whole)
    corpus.write_text(corpus_file.read_text() + "One more.\n")
    Path("runs/mlm/config.json").write_text(
        Path("runs/mlm/config.json").read_text().replace(str(corpus_file), str(corpus))
    )
    assert call("pretrain", "--resume") == 2
    assert "the corpus has changed since" in capsys.readouterr().err
