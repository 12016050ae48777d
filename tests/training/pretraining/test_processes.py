"""Test of two processes on the CPU, which must pre-train the same as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.forks import two_together
from training.cli import main

RUN = ["layers=1", "width=32", "heads=2", "max_length=32", "batch_size=8", "chunk_size=3", "steps=5", "eval_every=3"]
SETTINGS = [*RUN, "dropout=0", "learning_rate=0.01", "precision=fp32", "device=cpu"]
VALUES = ("loss", "accuracy", "gradient_norm", "masked_loss", "masked_accuracy")


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tiny_backbone: Path, corpus_file: Path, tmp_path: Path) -> None:
    arguments = ["pretrain", "--corpus", str(corpus_file), "--tokenizer", str(tiny_backbone)]
    arguments += [word for setting in SETTINGS for word in ("--set", setting)]

    def to(name: str) -> list[str]:
        return [*arguments, "--out", str(tmp_path / "artifacts" / name), "--set", f"run={tmp_path / name}"]

    assert main(to("one")) == 0
    assert two_together(main, to("two")) == [0, 0]
    found = []
    for name in ("one", "two"):
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        found.append([(line["kind"], line["step"], *(line[key] for key in VALUES if key in line)) for line in lines])
    assert [line[:2] for line in found[0]] == [line[:2] for line in found[1]]
    for one, two in zip(*found, strict=True):
        assert one[2:] == pytest.approx(two[2:], rel=1e-4)
    said = tmp_path / "said"
    assert 0 not in two_together(main, [*to("odd"), "--set", "batch_size=7"], said=said)
    assert "batch_size: 7 sequences can't be divided equally among 2 processes" in said.read_text()
