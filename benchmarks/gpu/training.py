"""Training at BERT-base's shape: steps of every objective beside two peers, and a run over a million sentences."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu import million, steps
from benchmarks.gpu.encoders import BERT_BASE, TINY, backbone
from benchmarks.gpu.report import Report
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.steps import SENTENCES, Size
from benchmarks.loops import LENGTH, PEERS
from models.encoder.encoder import Encoder
from training.data.batches import tokeniser
from training.data.corpus import open_corpus
from training.machine.devices import Devices

REHEARSAL = Size(batch=8, steps=1, rounds=1, warmup=1)
TO_END = 12.0
"""Seconds for an interrupted run to save a checkpoint, and for the work after it."""


def measure(setting: Setting, report: Report) -> None:
    """Measure steps, their kernels, and the run in the remaining time."""
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
            found = million.trained(
                weights, folder, setting, sentences=sentences, batch=size.batch, most=setting.left - TO_END
            )
            report.keep("million", found)


def described(size: Size) -> str:
    """Describe the measurement in words."""
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
    tokenise = tokeniser(encoder, None, max_length=LENGTH, own=Devices(setting.device).rows)
    batches = [tokenise(batch) for batch in texts[: size.steps]]
    taking = steps.contestants(weights, setting.device, texts, report)
    steps.measure(taking, setting.device, batches, size, lambda found: report.keep("steps", found))
    with report.attempt("profile"):
        report.keep("profile", steps.profile(taking["simcse"].step, setting.device, size.steps))
