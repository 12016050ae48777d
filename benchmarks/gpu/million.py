"""A run of SimCSE over a million sentences as a user would start it, with loss curve and wall time."""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.gpu.setting import Setting
from training import run
from training.checkpoints import record
from training.config import from_preset
from training.machine.interrupt import InterruptedRun

POINTS = 100
"""Points of the curve. Each is a mean."""


def trained(
    backbone: Path, folder: Path, setting: Setting, *, sentences: int, batch: int, most: float
) -> dict[str, Any]:
    """Train for a number of sentences and at most `most` seconds. A smaller corpus is repeated."""
    steps = sentences // batch
    given = {"batch_size": batch, "dropout": 0.1, "max_steps": steps, "eval_every": steps}
    place = {"device": setting.device, "run": str(folder / "run"), "out": str(folder / "out")}
    config = from_preset("simcse", backbone=str(backbone)).override({"corpus": setting.corpus, **given, **place})
    began = time.monotonic()
    try:
        with interrupted_after(most):
            run.fit(config, sys.stderr)
    except (InterruptedRun, KeyboardInterrupt):
        print(f"ended after {most:.0f} seconds, its share of the time", file=sys.stderr)
    return {"wall_s": round(time.monotonic() - began, 1), **curve(Path(config.run), steps, batch)}


def curve(folder: Path, steps: int, batch: int) -> dict[str, Any]:
    """Read progress, speed and loss from the record of a run."""
    lines = [json.loads(line) for line in (folder / record.METRICS).read_text(encoding="utf-8").splitlines()]
    taken = [line for line in lines if line["kind"] == "train"]
    corpus = json.loads((folder / record.ENVIRONMENT).read_text(encoding="utf-8"))["corpus"]
    size = max(1, steps // POINTS)
    parts = [taken[start : start + size] for start in range(0, len(taken), size)]
    return {
        "sentences": len(taken) * batch,
        "complete": len(taken) == steps,
        "corpus": corpus,
        "times_read": round(len(taken) * batch / corpus["sentences"], 2),
        "batch_size": batch,
        "seconds_of_steps": round(sum(batch / line["sentences_per_s"] for line in taken), 1),
        "sentences_per_s": round(statistics.median(line["sentences_per_s"] for line in taken)),
        "utilisation": round(statistics.median(line["utilisation"] for line in taken), 3),
        "loss": [[part[-1]["step"], round(statistics.mean(line["loss"] for line in part), 4)] for part in parts],
    }


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Press Ctrl-C when the time is up, so that the run ends with its step."""

    def press(_signal: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, press)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
