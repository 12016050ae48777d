"""Two processes on the CPU pre-train what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = ["layers=1", "width=32", "heads=2", "max_length=32", "batch_size=8", "chunk_size=3", "steps=5", "eval_every=3"]
SETTINGS = [*RUN, "dropout=0", "learning_rate=0.01", "precision=fp32", "device=cpu"]


def pretrained(folder: Path, processes: int, *options: str) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [sys.executable, *(launcher if processes > 1 else []), "-m", "training", "pretrain", *options],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tiny_backbone: Path, corpus_file: Path, tmp_path: Path) -> None:
    arguments = ["--corpus", str(corpus_file), "--tokenizer", str(tiny_backbone)]
    arguments += [word for setting in SETTINGS for word in ("--set", setting)]
    found = []
    for processes in (1, 2):
        done = pretrained(tmp_path, processes, *arguments, "--out", f"artifacts/{processes}")
        assert done.returncode == 0, done.stderr
        lines = map(json.loads, (tmp_path / f"runs/{processes}/metrics.jsonl").read_text().splitlines())
        values = ("loss", "accuracy", "gradient_norm", "masked_loss", "masked_accuracy")
        found.append([(line["kind"], line["step"], *(line[name] for name in values if name in line)) for line in lines])
    assert [line[:2] for line in found[0]] == [line[:2] for line in found[1]]
    for one, two in zip(*found, strict=True):
        assert one[2:] == pytest.approx(two[2:], rel=1e-4)
    odd = pretrained(tmp_path, 2, *arguments, "--set", "batch_size=7", "--out", "artifacts/odd")
    assert "batch_size: 7 sequences are not to be shared by 2 processes" in odd.stderr
