"""The loop of pre-training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from training.checkpoints.progress import Progress
from training.checkpoints.record import WriteMetrics, fsync_metrics
from training.checkpoints.speed import FIGURES, OperationCount
from training.data.batches import prefetch
from training.loop import READ_EVERY, DivergedError, format_terms
from training.machine.devices import Devices
from training.machine.interrupt import InterruptedRun
from training.pretraining import checkpoint
from training.pretraining.batches import Batch, Batches
from training.pretraining.checkpoint import State
from training.pretraining.config import PretrainConfig
from training.pretraining.model import MaskedTokens
from training.pretraining.step import Step, evaluate


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that stays the same from step to step."""

    config: PretrainConfig
    devices: Devices
    batches: Batches
    digest: str
    """Digest of the corpus."""
    precision: torch.dtype | None
    """Type of matrix products. None is float32."""
    work: OperationCount
    peak: float
    """Operations per second of a large matrix product, on all devices together."""
    folder: Path
    """Folder of checkpoints."""


class Taken(NamedTuple):
    """A step with unread loss."""

    step: int
    batch: Batch
    values: dict[str, Tensor]


def pretrain(
    state: State, step: Step, setting: Setting, record: WriteMetrics, progress: Progress, *, stop: Callable[[], bool]
) -> None:
    """Train `state` from its step to the last.

    Raises:
        DivergedError: a loss, held-out ones included, or gradient is NaN or infinite; the last checkpoint is
            from before.
        InterruptedRun: `stop` returned true; the checkpoint is from that step.
    """
    config, devices = setting.config, setting.devices
    held_out = setting.batches.held_out()
    if state.step == 0:
        _evaluate(state, setting, held_out, record, progress)
    batches = prefetch(islice(setting.batches.after(state.step, state.position), config.steps - state.step))
    read_every = READ_EVERY if devices.device.type == "cuda" else 1
    state.model.train()
    unread: list[Taken] = []
    since = time.perf_counter()

    with closing(batches):
        for batch in batches:
            values = step(batch, config.rate(state.step))
            state.step, state.position = state.step + 1, batch.position
            unread.append(Taken(state.step, batch, values))

            due = state.step % config.eval_every == 0 or state.step == config.steps
            if not due and state.step % read_every:
                continue
            _read(unread, since, setting, record, progress)
            unread.clear()
            if due:
                _evaluate(state, setting, held_out, record, progress)
            interrupted = state.step < config.steps and any(devices.from_all(stop()))
            if due or interrupted:
                _save(state, setting)
            if interrupted:
                raise InterruptedRun(f"stopped after step {state.step} of {config.steps}")
            since = time.perf_counter()


def speed(batches: Sequence[Batch], seconds: float, work: OperationCount, peak: float) -> dict[str, float]:
    """Compute sentences (or parts), tokens and operations per second. A backward pass counts as two forward passes."""
    lengths = [length for batch in batches for length in batch.lengths]
    operations = 3 * work.forward(lengths) / seconds
    figures = (len(lengths) / seconds, sum(lengths) / seconds, operations, operations / peak)
    return dict(zip(FIGURES, figures, strict=True))


def _read(unread: Sequence[Taken], since: float, setting: Setting, record: WriteMetrics, progress: Progress) -> None:
    """Record metrics for every step, with their mean speed."""
    rows = torch.stack([torch.stack(list(taken.values.values())) for taken in unread]).tolist()
    seconds = time.perf_counter() - since
    figures = speed([taken.batch for taken in unread], seconds, setting.work, setting.peak)
    for taken, row in zip(unread, rows, strict=True):
        values = dict(zip(taken.values, row, strict=True))
        _check_finite(taken.step, values)
        rate = setting.config.rate(taken.step - 1)
        record("train", taken.step, {**values, "learning_rate": rate, **figures})
        progress.advance(values["loss"], len(taken.batch.lengths), seconds / len(rows))


def _check_finite(step: int, values: Mapping[str, float]) -> None:
    if not all(map(math.isfinite, values.values())):
        raise DivergedError(f"step {step}: {format_terms(values)}; begin again with a lower learning_rate")


def _evaluate(
    state: State, setting: Setting, held_out: Sequence[MaskedTokens], record: WriteMetrics, progress: Progress
) -> None:
    """Evaluate in the first process. The others wait for it at the next step."""
    if not setting.devices.first:
        return
    scores = evaluate(state.model, held_out, setting.precision)
    _check_finite(state.step, scores)
    record("evaluation", state.step, scores)
    progress.say(f"step {state.step}: {format_terms({name: round(value, 4) for name, value in scores.items()})}")


def _save(state: State, setting: Setting) -> None:
    """Write metrics, then the checkpoint: a resumed run does not write earlier lines again."""
    if setting.devices.first:
        fsync_metrics(setting.folder)
    checkpoint.save(state, setting.folder, setting.devices, corpus=setting.digest)
