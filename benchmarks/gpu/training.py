"""Training with BERT-base's sizes: steps of every objective and of two peers, and a run over a million sentences."""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from benchmarks.gpu import steps
from benchmarks.gpu.encoders import BERT_BASE, TINY, backbone
from benchmarks.gpu.parts import Report, Setting
from benchmarks.gpu.pretraining import recorded
from benchmarks.gpu.steps import SENTENCES, Size
from benchmarks.loops import LENGTH, PEERS
from models.encoder.encoder import Encoder
from training import run
from training.checkpoints import record
from training.config import from_preset
from training.data.batches import Tokeniser
from training.data.corpus import open_corpus
from training.machine.devices import Devices
from training.machine.interrupt import InterruptedRun

REHEARSAL = Size(batch=8, steps=1, rounds=1, warmup=1)
TO_END = 12.0
"""Seconds that are reserved for an interrupted run to save a checkpoint, and for the work after it."""
POINTS = 100
"""Number of points of the learning curve, each of which is a mean over several steps."""


def measure(setting: Setting, report: Report) -> None:
    """Measure the training steps and their kernels, and then a training run in the remaining time."""
    size = REHEARSAL if setting.tiny else Size()
    report.keep("setting", described(size))
    report.keep("peak_flops_per_s", f"{steps.peak(setting.device):.3g}")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        weights = backbone(TINY if setting.tiny else BERT_BASE, folder / "bert-base-uncased")
        with report.attempt("steps"):
            _steps(weights, setting, size, report)
        with report.attempt("million"):
            sentences = 4 * size.batch if setting.tiny else SENTENCES
            found = trained(weights, folder, setting, sentences=sentences, batch=size.batch, most=setting.left - TO_END)
            report.keep("million", found)


def described(size: Size) -> str:
    return (
        f"random weights, [CLS], batch {size.batch}, {LENGTH} tokens at most, bf16 autocast on CUDA; "
        f"{size.rounds} interleaved rounds of {size.steps} steps, none waited for before the last; {steps.LAUNCHED}: "
        f"ours, every kernel launched by itself; {', '.join(PEERS)}: princeton-nlp/SimCSE's loop in transformers, "
        "sdpa, padded to the longest, and MultipleNegativesRankingLoss on (text, text); utilisation: share of the "
        "measured peak"
    )


def _steps(weights: Path, setting: Setting, size: Size, report: Report) -> None:
    corpus = open_corpus(setting.corpus, held_out=0).batches(size.batch, seed=0)
    texts = list(islice(corpus, size.steps * (size.rounds + size.warmup)))
    encoder = Encoder.load(weights, pooling="cls")
    tokenise = Tokeniser(encoder, None, max_length=LENGTH, own=Devices(setting.device).rows)
    batches = [tokenise(batch) for batch in texts[: size.steps]]
    taking = steps.contestants(weights, setting.device, texts, report)
    steps.measure(taking, setting.device, batches, size, lambda found: report.keep("steps", found))
    with report.attempt("profile"):
        report.keep("profile", steps.profile(taking["simcse"].step, setting.device, size.steps))


def trained(
    backbone: Path, folder: Path, setting: Setting, *, sentences: int, batch: int, most: float
) -> dict[str, Any]:
    """Train on `sentences` sentences, repeated if the corpus is smaller, for at most `most` seconds."""
    steps = sentences // batch
    given = {"batch_size": batch, "dropout": 0.1, "max_steps": steps, "eval_every": steps}
    place = {"device": setting.device, "run": str(folder / "run"), "out": str(folder / "out")}
    config = from_preset("simcse", backbone=str(backbone)).override({"corpus": setting.corpus, **given, **place})
    began = time.monotonic()
    try:
        with interrupted_after(most):
            run.fit(config, sys.stderr)
    except (InterruptedRun, KeyboardInterrupt):
        print(f"stopped after {most:.0f} seconds, its share of the time", file=sys.stderr)
    return {"wall_s": round(time.monotonic() - began, 1), **curve(Path(config.run), steps, batch)}


def curve(folder: Path, steps: int, batch: int) -> dict[str, Any]:
    """Return progress, speed and loss from the record of a run."""
    taken = recorded(folder, "train")
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
    """Raise KeyboardInterrupt in the block after `seconds`, so that the run stops after its current step."""

    def press(_signal: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, press)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
