"""The loop of a run: take steps, read their losses, evaluate, and save checkpoints.

Training and pre-training share the loop. `Run` is the protocol of the parts that differ between the two. `Training`
implements this protocol for an encoder that is trained by an objective.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Generic, Protocol, TextIO, TypeVar

import torch
from torch import Tensor, nn

from models.encoder.encoder import Encoder
from models.errors import Failed
from training.checkpoints import checkpoint
from training.checkpoints.checkpoint import CHECKPOINT, Best, CheckpointError, Resumable, Snapshot, State
from training.checkpoints.progress import Progress
from training.checkpoints.record import Record, WriteMetrics, fsync_metrics
from training.config import RunConfig
from training.data.batches import Batch, prefetch
from training.data.corpus import Corpus
from training.encoding.views import fsync_caches
from training.evaluation.selection import Selection
from training.machine.devices import Devices
from training.machine.interrupt import InterruptedRun, interruptible
from training.objectives.base import REMOVED_SHARE
from training.step import Step, learning_rate, make_meter, make_tokeniser

READ_EVERY = 20
"""Number of steps after which losses are copied from an asynchronous device.

On a CPU, losses are read after every step.
"""
TIMED_STEPS = 3
"""Number of steps of a new run after which its duration is estimated."""

B = TypeVar("B", bound=Sized)
"""Type of a batch, whose length is the number of its sentences."""


class DivergedError(Failed):
    """A loss, gradient or weight is not finite. The message names the step and the terms of its loss."""


@dataclass(frozen=True)
class TakenStep(Generic[B]):
    """A step with its inputs and results."""

    step: int
    batch: B
    before: Snapshot | None
    """State from before the step, if the run stores diverged steps."""
    values: Mapping[str, Tensor]


class Run(Protocol[B]):
    """Protocol of the parts of a run that differ between training and pre-training."""

    devices: Devices
    folder: Path
    """Folder of record and checkpoints."""
    total_steps: int
    """Number of steps of the whole run."""
    eval_every: int
    """Steps between evaluations, and between checkpoints."""

    @property
    def state(self) -> Resumable:
        """Return the state that checkpoints store."""

    @property
    def module(self) -> nn.Module:
        """Return the trained module."""

    def batches(self) -> Iterator[B]:
        """Yield the batches of the steps after `state.step`."""

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""

    def snapshot(self) -> Snapshot | None:
        """Copy the state that is needed to replay the next step if it diverges. Return None if no replay is stored."""

    def take(self, batch: B, learning_rate: float) -> dict[str, Tensor]:
        """Update the state from a batch, and return the logged values by name, without waiting for the device."""

    def speed(self, steps: Sequence[tuple[int, B]], seconds: float) -> Mapping[str, float]:
        """Compute the logged speeds.

        `steps` has pairs of step number and batch, and `seconds` is their total duration.
        """

    def check(self, taken: TakenStep[B], values: Mapping[str, float]) -> str | None:
        """Check that the values of a step are finite. Return a remark to print for the user, or None if there is none.

        Raises:
            DivergedError: a value is not finite. After an fp16 overflow, a run may continue without this error.
        """

    def evaluate(self, record: WriteMetrics, progress: Progress) -> None:
        """Evaluate the state, and write the scores.

        Raises:
            DivergedError: a weight or score is not finite.
        """

    def save(self) -> None:
        """Write a checkpoint."""


def run_to_end(run: Run[B], headline: str, stream: TextIO) -> None:
    """Take all remaining steps, write metrics to the run's folder, and print progress to `stream`.

    With several processes, only the first one reports and writes.

    Raises:
        DivergedError: a value is not finite; the last checkpoint is from before the divergence.
        InterruptedRun: Ctrl-C or SIGTERM arrived; the checkpoint is from the last step.
    """
    lines = Record(run.folder, step=run.state.step or -1) if run.devices.first else None
    progress = Progress(stream, total=run.total_steps, done=run.state.step)
    progress.say(headline)
    try:
        with interruptible() as stop:
            _take_steps(run, lines.write if lines else lambda *_: None, progress, stop=stop)
    finally:
        progress.close()
        if lines:
            lines.close()


def _take_steps(run: Run[B], record: WriteMetrics, progress: Progress, *, stop: Callable[[], bool]) -> None:
    state, devices, total = run.state, run.devices, run.total_steps
    evaluation: float | None = None  # Seconds of the first evaluation, until the remaining time has been reported.
    if state.step == 0:
        began = time.perf_counter()
        run.evaluate(record, progress)
        evaluation = time.perf_counter() - began
    batches = prefetch(islice(run.batches(), total - state.step))
    read_every = READ_EVERY if devices.device.type == "cuda" else 1
    run.module.train()
    pending: list[TakenStep[B]] = []  # Steps whose losses have not been copied to the host.
    since = time.perf_counter()

    with closing(batches):
        for batch in batches:
            before = run.snapshot()
            values = run.take(batch, run.learning_rate(state.step))
            state.step += 1
            pending.append(TakenStep(state.step, batch, before, values))

            due = state.step % run.eval_every == 0 or state.step == total
            if not due and state.step % read_every:
                continue
            _read(pending, since, run, record, progress)
            pending.clear()
            if evaluation is not None and state.step >= TIMED_STEPS:
                ended = (state.step - due) // run.eval_every
                progress.say_remaining(math.ceil(total / run.eval_every) - ended, evaluation)
                evaluation = None
            if due:
                run.evaluate(record, progress)
            interrupted = state.step < total and any(devices.from_all(stop()))
            if due or interrupted:
                if devices.first:  # A run that resumes from the checkpoint does not write earlier lines again.
                    fsync_metrics(run.folder)
                run.save()
            if interrupted:
                raise InterruptedRun(f"stopped after step {state.step} of {total}")
            since = time.perf_counter()  # The time of an evaluation does not count as time of the next steps.


def _read(pending: Sequence[TakenStep[B]], since: float, run: Run[B], record: WriteMetrics, progress: Progress) -> None:
    """Record the metrics of steps, with their mean speed since the time `since`.

    Each copy from the device waits for the device. So the values of all steps are copied together.
    """
    rows = torch.stack([torch.stack([value.float() for value in each.values.values()]) for each in pending]).tolist()
    seconds = time.perf_counter() - since
    speed = run.speed([(taken.step, taken.batch) for taken in pending], seconds)
    for taken, row in zip(pending, rows, strict=True):
        values = dict(zip(taken.values, row, strict=True))
        remark = run.check(taken, values)
        record("train", taken.step, {**values, "learning_rate": run.learning_rate(taken.step - 1), **speed})
        progress.advance(values["loss"], len(taken.batch), seconds / len(pending))
        if remark:
            progress.say(remark)


def is_finite(values: Mapping[str, float]) -> bool:
    return all(map(math.isfinite, values.values()))


def format_terms(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


# The run of an objective. It keeps the best weights so far, and stores a diverged step for replay.

EASY_AT, EASY = 10, 0.01
"""If the InfoNCE loss at step `EASY_AT` is below `EASY`, the task is too easy to learn from."""
MOST_REMOVED = 0.5
"""If an objective removes a larger share of the negatives, a low InfoNCE loss does not mean that the task is easy."""


class Training:
    """A run that trains an encoder by an objective."""

    def __init__(
        self,
        config: RunConfig,
        state: State,
        *,
        corpus: Corpus,
        devices: Devices,
        teacher: Encoder | None,
        autocast: torch.dtype | None,
        selection: Selection,
    ) -> None:
        self.config, self.state, self.corpus, self.devices, self.selection = config, state, corpus, devices, selection
        self.folder, self.eval_every = Path(config.run), config.eval_every
        epoch = corpus.batches_per_epoch(config.batch_size, least=devices.count)
        self.total_steps = config.max_steps or config.epochs * epoch
        # With several processes, nothing is cached, because each process encodes other sentences in each epoch. With
        # passages, nothing is cached, because their texts differ in each epoch.
        caches = self.total_steps > epoch and devices.count == 1 and config.positives is None
        self.take = Step(config, state, devices, teacher, autocast, keep=self.folder if caches else None)
        self.tokenise = make_tokeniser(config, state.encoder, teacher, devices)
        self.speed = make_meter(state, teacher, devices, autocast, cached_after=epoch if caches else math.inf)

    @property
    def module(self) -> Encoder:
        return self.state.encoder

    def batches(self) -> Iterator[Batch]:
        config, done = self.config, self.state.step
        order = self.corpus.batches(config.batch_size, seed=config.seed, start=done, least=self.devices.count)
        return map(self.tokenise, order, count(done))

    def learning_rate(self, step: int) -> float:
        return learning_rate(self.config.learning_rate, step, self.total_steps)

    def snapshot(self) -> Snapshot:
        return Snapshot.of(self.state)

    def check(self, taken: TakenStep[Batch], values: Mapping[str, float]) -> str | None:
        """Check that the values of a step are finite. Return a remark if there is little to learn, or None.

        Raises:
            DivergedError: a value is not finite, for another reason than an overflow of fp16. The step has been stored
                for a replay.
        """
        if not is_finite(values) and not self._is_fp16_overflow(values):
            file, folder = save_divergence(self.state, taken, self.folder, self.devices), shlex.quote(str(self.folder))
            says = f"step {taken.step}: {format_terms(values)}; {file} has the weights and the batch: "
            says += f"isosphere replay {folder} shows its terms"
            if (self.folder / CHECKPOINT).is_file():
                says += f", isosphere finish {folder} exports the best weights from before it"
            raise DivergedError(says)
        if taken.step == EASY_AT and values.get("info_nce", EASY) < EASY:
            if (removed := values.get(REMOVED_SHARE, 0)) > MOST_REMOVED:
                return (
                    f"{removed:.0%} of the negatives were removed as too similar to their sentences, so there is "
                    "little to learn. Set a higher threshold (--set threshold=…; it is "
                    f"{self.config.params.threshold:g})"
                )
            return (
                f"the task is too easy, so there is little to learn: InfoNCE is {values['info_nce']:.2g} after "
                f"{EASY_AT} steps. Train on passages of several sentences, or set another augmentation "
                f"(--set augmentation=…; it is {self.config.augmentation})"
            )
        return None

    def _is_fp16_overflow(self, values: Mapping[str, float]) -> bool:
        """Return whether the gradient overflowed in fp16, given the values of a step that are not all finite.

        After an fp16 overflow, the update is skipped and the loss scale is halved. If the loss is not finite or the
        loss scale is below 1, the cause is not an overflow, and the result is False.
        """
        scaler = self.state.scaler
        return scaler.is_enabled() and math.isfinite(values["loss"]) and scaler.get_scale() >= 1

    def evaluate(self, record: WriteMetrics, progress: Progress) -> None:
        """Evaluate in the first process and send the score to all processes.

        Store the weights if the score is the best so far.

        Raises:
            DivergedError: a weight is not finite.
        """
        state = self.state
        # An update with finite gradients can still make weights infinite.
        if state.step and not all(bool(weights.isfinite().all()) for weights in state.encoder.parameters()):
            raise DivergedError(
                f"step {state.step}: the update made weights NaN or infinite; start a new run with a lower "
                "learning_rate"
            )
        metric = self.selection.metric
        scores = self.selection.scores(state.encoder.encode) if self.devices.first else {metric: 0.0}
        score = self.devices.from_all(scores[metric])[0]
        record("evaluation", state.step, {**scores, **state.objective.report()})
        best = state.best is None or score > state.best.score
        if best:
            state.best = Best(state.step, score)
            if self.devices.first:
                checkpoint.save_best(state, state.best, self.folder)
        progress.say(f"step {state.step}: {metric} {score:.4f}{' (best so far)' if best else ''}")

    def save(self) -> None:
        if self.devices.first:
            fsync_caches(self.folder)
        checkpoint.save(self.state, self.folder, self.devices, corpus=self.corpus.census.digest)
        if self.devices.first:
            checkpoint.remove_outdated_best(self.state, self.folder)


def save_divergence(state: State, taken: TakenStep[Batch], folder: Path, devices: Devices) -> Path:
    """Write a diverged step to a file for a replay, and return the path of the file.

    The file has the sentences of the step, the current weights, and the random states from before the step. A diverged
    step changes no weights, so the current weights are also those from before the step. With several processes, only
    the random state of the first one is stored.

    Files of earlier divergences are removed. Otherwise, if a resumed run diverges at a smaller step than before,
    `last_divergence` would return the outdated file.
    """
    assert taken.before is not None, "training takes snapshots"
    file = folder / f"diverged-{taken.step:08d}.safetensors"
    if devices.first:
        checkpoint.save_snapshot(state, taken.before, file, step=taken.step - 1, sentences=taken.batch.sentences)
        for other in _divergences(folder):
            if other != file:
                other.unlink()
    devices.wait()
    return file


def last_divergence(folder: Path) -> Path:
    """Return the file of the last step at which the run in `folder` diverged.

    Raises:
        CheckpointError: the run never diverged.
    """
    files = _divergences(folder)
    if not files:
        raise CheckpointError(f"{folder}: no step of this run diverged")
    return files[-1]


def _divergences(folder: Path) -> list[Path]:
    return sorted(folder.glob("diverged-*.safetensors"))
