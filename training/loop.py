"""The training loop, the same for every objective."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from models.encoder.encoder import Encoder
from training import checkpoint, diverged, recall
from training.checkpoint import Best, Moment, State
from training.config import RunConfig
from training.corpus.batches import Tokenise, ahead
from training.corpus.corpus import Corpus
from training.diverged import DivergedError
from training.interrupt import InterruptedRun
from training.machine.devices import Devices
from training.objectives.base import Reports
from training.progress import Progress
from training.record import Write, fsync_metrics
from training.speed import Meter
from training.step import Step, learning_rate
from training.unread import Taken, Unread

EASY_AT, EASY = 10, 0.01
"""Step and InfoNCE value that show an easy task: a smaller loss at this step means that the batch is already solved."""
READ_EVERY = 20
"""Steps between readings of the losses on asynchronous devices. A CPU's losses are read at every step."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that stays the same from step to step."""

    config: RunConfig
    devices: Devices
    corpus: Corpus
    tokenise: Tokenise
    meter: Meter
    scores: Callable[[Encoder], Mapping[str, float]]
    """A function that computes the figures of an evaluation."""
    metric: str
    """Name of the figure that chooses the best weights. Higher is better."""
    folder: Path
    """Folder of checkpoints."""
    total_steps: int
    """Number of steps of the whole run."""


def train(
    state: State, step: Step, setting: Setting, record: Write, progress: Progress, *, stop: Callable[[], bool]
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
    batches = ahead(map(setting.tokenise, islice(order, total - state.step), count(state.step)))
    read_every = READ_EVERY if devices.device.type == "cuda" else 1
    state.encoder.train()
    unread = Unread()

    with closing(batches):
        for batch in batches:
            before = Moment.of(state)
            values = step(batch, learning_rate(config.learning_rate, state.step, total))
            state.step += 1
            unread.append(Taken(state.step, batch, before, values))

            due = state.step % config.eval_every == 0 or state.step == total
            if not due and state.step % read_every:
                continue
            _read(unread, state, setting, record, progress)
            if due:
                diverged.check_weights(state)
                _evaluate(state, setting, record, progress)
            interrupted = state.step < total and any(devices.each(stop()))
            if due or interrupted:
                if devices.first:  # A run that resumes from the checkpoint does not write earlier lines again.
                    fsync_metrics(setting.folder)
                    recall.settle(setting.folder)
                checkpoint.save(state, setting.folder, devices, corpus=setting.corpus.census.digest)
            if interrupted:
                raise InterruptedRun(f"stopped after step {state.step} of {total}")
            unread.restart()


def _read(unread: Unread, state: State, setting: Setting, record: Write, progress: Progress) -> None:
    """Record metrics for every step since the last reading, with their mean speed."""
    steps, seconds = unread.read()
    speed = setting.meter([(each.taken.step, each.taken.batch) for each in steps], seconds)
    for each in steps:
        taken, values = each.taken, each.values
        if each.diverged and not diverged.only_out_of_range(values, state.scaler):
            file = diverged.save(state, taken, setting.folder, setting.devices)
            folder = shlex.quote(str(setting.folder))
            raise DivergedError(
                f"step {taken.step}: {diverged.listed(values)}; {file} has the weights and the batch: "
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


def _evaluate(state: State, setting: Setting, record: Write, progress: Progress) -> None:
    """Evaluate in the first process, and share its score with all."""
    scores = setting.scores(state.encoder) if setting.devices.first else {setting.metric: 0.0}
    score = setting.devices.agreed(scores[setting.metric])
    report = state.objective.report() if isinstance(state.objective, Reports) else {}
    record("evaluation", state.step, {**scores, **report})
    best = state.best is None or score > state.best.score
    if best:
        state.best = Best(state.step, score)
        if setting.devices.first:
            checkpoint.save_best(state, state.best, setting.folder)
    progress.say(f"step {state.step}: {setting.metric} {score:.4f}{' (best so far)' if best else ''}")
