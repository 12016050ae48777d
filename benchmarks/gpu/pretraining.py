"""Pre-training of a masked language model of BERT-small's size in the remaining time, and encoders trained from it."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.encoders import BERT_SMALL, TINY, Shape, backbone
from benchmarks.gpu.parts import Report, Setting
from training import run
from training.checkpoints import record
from training.checkpoints.publish import sts_manifest_scores, sts_scores
from training.config import RunConfig, from_preset
from training.pretraining.config import PretrainConfig
from training.pretraining.run import fit

RESERVED = 30.0
"""Seconds that are reserved for training the encoders, each for `STEPS` steps."""
STEPS, BATCH = 300, 64
PROBED = 60
"""Number of steps of a short run that measures the speed.

On CUDA, its first steps record the graphs that later steps replay.
"""
LEAST = 50


def measure(setting: Setting, report: Report) -> None:
    """Pre-train a language model, and train from it SimCSE, and then DCLR with the SimCSE encoder as its teacher."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shape = TINY if setting.tiny else BERT_SMALL
        config = described(shape, folder, setting)
        report.keep("model", pretrained(config, folder, setting, report))
        teacher = None
        for name in ("simcse", "dclr"):
            with report.attempt(name):
                trained = _from(config.out, name, folder, setting, teacher)
                report.keep(name, encoder(trained, folder / f"{name}-encoder"))
                teacher = str(folder / "simcse-encoder")


def described(shape: Shape, folder: Path, setting: Setting) -> PretrainConfig:
    """Return the configuration of the pre-training run. Its number of steps is set later."""
    layers, width, heads, length = shape
    return PretrainConfig(
        corpus=setting.corpus,
        tokenizer=str(backbone(shape, folder / "tokenizer")),
        out=str(folder / "model"),
        run=str(folder / "pretraining"),
        layers=layers,
        width=width,
        heads=heads,
        max_length=length,
        batch_size=4 if setting.tiny else PretrainConfig.batch_size,
        device=setting.device,
    )


def pretrained(config: PretrainConfig, folder: Path, setting: Setting, report: Report) -> dict[str, Any]:
    """Pre-train for the remaining time, after a short run that measures the speed. Return speed and learning curve."""
    probed = 2 if setting.tiny else PROBED
    probe = config.override(
        {"steps": probed, "eval_every": probed, "out": str(folder / "probe"), "run": str(folder / "probing")}
    )
    before = setting.left
    fit(probe, sys.stderr)
    seconds = _seconds_a_step(Path(probe.run), config.batch_size)
    around = before - setting.left - probed * seconds
    steps = 2 if setting.tiny else max(LEAST, int((setting.left - RESERVED - around) / seconds))
    report.keep("probe", {"ms_a_step": round(1e3 * seconds, 2), "seconds_around": round(around, 1), "steps": steps})
    fit(config.override({"steps": steps, "eval_every": max(1, steps // 5)}), sys.stderr)
    taken = recorded(Path(config.run), "train")
    return {
        "config": json.loads((Path(config.run) / record.CONFIG).read_text(encoding="utf-8")),
        "tokens_per_s": round(statistics.median(line["tokens_per_s"] for line in taken)),
        "utilisation": round(statistics.median(line["utilisation"] for line in taken), 3),
        "evaluations": recorded(Path(config.run), "evaluation"),
    }


def encoder(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Train an encoder, save it in a folder, evaluate it on STS if there are data, and return the figures."""
    outcome = run.fit(config, sys.stderr)
    outcome.encoder.save(folder)
    scores = sts_scores(outcome.encoder.to(config.device), outcome.tasks, sys.stderr)
    return {
        "steps": outcome.steps,
        "best_step": outcome.best.step,
        outcome.metric: round(outcome.best.score, 4),
        "sts": {task: round(score, 2) for task, score in sts_manifest_scores(scores).items()},
        "evaluations": recorded(Path(config.run), "evaluation"),
    }


def _from(model: str, name: str, folder: Path, setting: Setting, teacher: str | None) -> RunConfig:
    """Return a run's configuration as in the studies: [CLS] pooling with a head, at the published learning rate."""
    steps, batch = (2, 8) if setting.tiny else (STEPS, BATCH)
    return from_preset(name, backbone=model).override(
        {
            "corpus": setting.corpus,
            "eval_data": setting.data,
            "teacher": teacher,
            "pooling": "cls",
            "head": True,
            "dropout": 0.1,
            "batch_size": batch,
            "learning_rate": 3e-5,
            "max_steps": steps,
            "eval_every": max(1, steps // 6),
            "device": setting.device,
            "run": str(folder / f"{name}-run"),
            "out": str(folder / f"{name}-out"),
        }
    )


def _seconds_a_step(run: Path, batch: int) -> float:
    """Return the median seconds per step in the second half of the steps, because the first half is warm-up."""
    speeds: list[float] = [line["sentences_per_s"] for line in recorded(run, "train")]
    return batch / statistics.median(speeds[len(speeds) // 2 :])


def recorded(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the metrics of a run's steps (`train`) or evaluations (`evaluation`)."""
    lines = map(json.loads, (run / record.METRICS).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == kind]
