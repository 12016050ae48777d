"""The training loop, the same for every objective."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from models.encoder.encoder import Encoder
from models.errors import Failed
from training.checkpoints import checkpoint
from training.checkpoints.checkpoint import Best, CheckpointError, Snapshot, State
from training.checkpoints.progress import Progress
from training.checkpoints.record import WriteMetrics, fsync_metrics
from training.checkpoints.speed import SpeedMeter
from training.config import RunConfig
from training.data.batches import Batch, Tokenise, prefetch
from training.data.corpus import Corpus
from training.encoding import teacher_cache
from training.machine.devices import Devices
from training.machine.interrupt import InterruptedRun
from training.objectives.base import Reports
from training.step import Step, learning_rate

# Steps with unread losses. Reading waits for the device, so many steps are read together.


@dataclass(frozen=True)
class PendingStep:
    """A step with its inputs and results."""

    step: int
    batch: Batch
    before: Snapshot
    """State from before the step, without weights. The step can be repeated while weights are unchanged."""
    values: Mapping[str, Tensor]


@dataclass(frozen=True)
class Read:
    """A step with its values as numbers."""

    taken: PendingStep
    values: dict[str, float]

    @property
    def diverged(self) -> bool:
        """Return whether a value is NaN or infinite."""
        return not all(map(math.isfinite, self.values.values()))


class PendingSteps:
    """Steps whose losses have not been read."""

    def __init__(self) -> None:
        self._taken: list[PendingStep] = []
        self.restart()

    def restart(self) -> None:
        """Restart the clock, so that the time until now does not count for the next steps."""
        self._since = time.perf_counter()

    def append(self, taken: PendingStep) -> None:
        self._taken.append(taken)

    def read(self) -> tuple[list[Read], float]:
        """Return the steps since the last reading, in order, and their total seconds.

        One transfer reads all values.
        """
        taken, self._taken = self._taken, []
        rows = torch.stack([torch.stack([value.float() for value in each.values.values()]) for each in taken]).tolist()
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        return [
            Read(each, dict(zip(each.values, row, strict=True))) for each, row in zip(taken, rows, strict=True)
        ], seconds


# Divergence: a step whose loss is not finite is stored, so that it can be repeated and inspected.


class DivergedError(Failed):
    """A loss, gradient or weight is not finite. The message names step and terms."""


def is_fp16_overflow(values: Mapping[str, float], scaler: GradScaler) -> bool:
    """Return whether a finite loss has a gradient beyond the range of fp16.

    The update is then skipped and the scale halved. A scale below 1 rules this explanation out.
    """
    return scaler.is_enabled() and math.isfinite(values["loss"]) and scaler.get_scale() >= 1


def check_weights(state: State) -> None:
    """Check that the encoder's weights are finite before they are evaluated and stored.

    Raises:
        DivergedError: a weight is NaN or infinite, which an update with finite gradients can cause.
    """
    if not all(bool(weights.isfinite().all()) for weights in state.encoder.parameters()):
        raise DivergedError(
            f"step {state.step}: its update leaves weights that are no numbers; begin again with a lower learning_rate"
        )


def format_terms(values: Mapping[str, float]) -> str:
    """Format the terms in one line."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def last_divergence(folder: Path) -> Path:
    """Return the file of the last step at which the run in `folder` diverged.

    Raises:
        CheckpointError: the run never diverged.
    """
    files = _kept(folder)
    if not files:
        raise CheckpointError(f"{folder}: no step of this run diverged")
    return files[-1]


def save_divergence(state: State, taken: PendingStep, folder: Path, devices: Devices) -> Path:
    """Write weights, random states and sentences from before the step.

    No weight has changed since.

    Files of earlier divergences are removed, because the resumed run may now diverge at an earlier step. With several
    processes, only the first one's random state is stored.
    """
    file = folder / f"diverged-{taken.step:08d}.safetensors"
    if devices.first:
        checkpoint.save_snapshot(state, taken.before, file, step=taken.step - 1, sentences=taken.batch.sentences)
        for other in _kept(folder):
            if other != file:
                other.unlink()
    devices.wait()
    return file


def _kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("diverged-*.safetensors"))


EASY_AT, EASY = 10, 0.01
"""Step and InfoNCE value that show an easy task: a smaller loss at this step means that the batch is already solved."""
READ_EVERY = 20
"""Steps between readings of the losses on asynchronous devices. A CPU's losses are read at every step."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Everything that stays the same from step to step."""

    config: RunConfig
    devices: Devices
    corpus: Corpus
    tokenise: Tokenise
    meter: SpeedMeter
    scores: Callable[[Encoder], Mapping[str, float]]
    """A function that computes the figures of an evaluation."""
    metric: str
    """Name of the figure that chooses the best weights. Higher is better."""
    folder: Path
    """Folder of checkpoints."""
    total_steps: int
    """Number of steps of the whole run."""


def train(
    state: State, step: Step, setting: RunContext, record: WriteMetrics, progress: Progress, *, stop: Callable[[], bool]
) -> None:
    """Train `state` from its step to the last.

    The best weights so far are always in the run's folder.

    Raises:
        DivergedError: a loss or gradient is not finite; that step is stored for replay, with the weights
            before it. Or weights are not finite before an evaluation; the last checkpoint is from before.
        InterruptedRun: `stop` returned true; the checkpoint is from that step.
    """
    config, devices, total = setting.config, setting.devices, setting.total_steps
    if state.step == 0:
        _evaluate(state, setting, record, progress)
    order = setting.corpus.batches(config.batch_size, seed=config.seed, start=state.step, least=devices.count)
    batches = prefetch(map(setting.tokenise, islice(order, total - state.step), count(state.step)))
    read_every = READ_EVERY if devices.device.type == "cuda" else 1
    state.encoder.train()
    unread = PendingSteps()

    with closing(batches):
        for batch in batches:
            before = Snapshot.of(state)
            values = step(batch, learning_rate(config.learning_rate, state.step, total))
            state.step += 1
            unread.append(PendingStep(state.step, batch, before, values))

            due = state.step % config.eval_every == 0 or state.step == total
            if not due and state.step % read_every:
                continue
            _read(unread, state, setting, record, progress)
            if due:
                check_weights(state)
                _evaluate(state, setting, record, progress)
            interrupted = state.step < total and any(devices.from_all(stop()))
            if due or interrupted:
                if devices.first:  # A run that resumes from the checkpoint does not write earlier lines again.
                    fsync_metrics(setting.folder)
                    teacher_cache.fsync_caches(setting.folder)
                checkpoint.save(state, setting.folder, devices, corpus=setting.corpus.census.digest)
            if interrupted:
                raise InterruptedRun(f"stopped after step {state.step} of {total}")
            unread.restart()


def _read(unread: PendingSteps, state: State, setting: RunContext, record: WriteMetrics, progress: Progress) -> None:
    """Record metrics for every step since the last reading, with their mean speed."""
    steps, seconds = unread.read()
    speed = setting.meter([(each.taken.step, each.taken.batch) for each in steps], seconds)
    for each in steps:
        taken, values = each.taken, each.values
        if each.diverged and not is_fp16_overflow(values, state.scaler):
            file = save_divergence(state, taken, setting.folder, setting.devices)
            folder = shlex.quote(str(setting.folder))
            raise DivergedError(
                f"step {taken.step}: {format_terms(values)}; {file} has the weights and the batch: "
                f"isosphere replay {folder} looks into it, "
                f"finish {folder} makes a bundle of the best weights before it"
            )
        rate = learning_rate(setting.config.learning_rate, taken.step - 1, setting.total_steps)
        record("train", taken.step, {**values, "learning_rate": rate, **speed})
        progress.advance(values["loss"], len(taken.batch.sentences), seconds / len(steps))
        if taken.step == EASY_AT and values.get("info_nce", EASY) < EASY:
            progress.say(
                f"the task is too easy, so there is little to learn: InfoNCE is {values['info_nce']:.2g} after "
                f"{EASY_AT} steps. Train on passages of several sentences, or set another augmentation "
                f"(--set augmentation=…; it is {setting.config.augmentation})"
            )


def _evaluate(state: State, setting: RunContext, record: WriteMetrics, progress: Progress) -> None:
    """Evaluate in the first process, and share its score with all."""
    scores = setting.scores(state.encoder) if setting.devices.first else {setting.metric: 0.0}
    score = setting.devices.from_first(scores[setting.metric])
    report = state.objective.report() if isinstance(state.objective, Reports) else {}
    record("evaluation", state.step, {**scores, **report})
    best = state.best is None or score > state.best.score
    if best:
        state.best = Best(state.step, score)
        if setting.devices.first:
            checkpoint.save_best(state, state.best, setting.folder)
    progress.say(f"step {state.step}: {setting.metric} {score:.4f}{' (best so far)' if best else ''}")
