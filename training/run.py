"""A whole run, from a configuration to a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import torch

from models import bundle
from models.bundle import Bundle
from models.encoder import Encoder
from models.export import export
from training import checkpoint, record
from training.checkpoint import Best, State
from training.config import ConfigError, RunConfig
from training.corpus import HELD_OUT, Census, Corpus, open_corpus
from training.environment import environment
from training.evaluation import sts
from training.evaluation.pairs import STS_TASKS, Subsets
from training.evaluation.sts import TaskScore
from training.hardware import autocast_dtype, pick_device
from training.interrupt import interruptible
from training.loop import Setting, adamw, train
from training.objectives import OBJECTIVES
from training.progress import Progress, encode_visibly
from training.record import Record, RunError
from training.selection import Selection, by_self_retrieval, by_stsb_dev


@dataclass(frozen=True)
class Outcome:
    """What a run came to: the encoder with its best weights, how they were chosen, and what is to judge them."""

    encoder: Encoder
    best: Best
    metric: str
    census: Census
    tasks: Mapping[str, Subsets]
    """The STS tasks of the run's evaluation data."""


def fit(config: RunConfig, stream: TextIO, *, resume: bool = False) -> Outcome:
    """Trains as `config` says, its record in `config.run`, reporting to `stream`.

    All that the end needs is read or looked at before the run's folder is made.

    Raises:
        RunError: the run's folder holds a run already, or with `resume` none; or the bundle can't be written.
        ValueError: one of the packages' own, naming the file or option: backbone, corpus or data are not usable.
        DivergedError, InterruptedRun: see `training.loop.train`.
    """
    _check_folders(config, resume)
    device = pick_device(config.device)
    autocast = autocast_dtype(config.precision, device)
    corpus = open_corpus(config.corpus, held_out=0 if config.eval_data else HELD_OUT)
    selection, tasks = _judges(config, corpus, stream)
    state = _initial(config, device)
    folder = Path(config.run) if resume else record.start(config, _surroundings(corpus, device, autocast))
    taken_up = checkpoint.load(state, folder, corpus=corpus.census.digest)

    setting = Setting(
        config=config,
        corpus=corpus,
        score=lambda encoder: selection.score(encoder.encode),
        metric=selection.metric,
        folder=folder,
        autocast=autocast,
    )
    _loop(state, setting, taken_up, stream)
    assert state.best is not None, "the loop evaluates before its first step"
    checkpoint.load_best(state.encoder, state.best, folder)
    return Outcome(state.encoder.eval().cpu(), state.best, selection.metric, corpus.census, tasks)


def publish(config: RunConfig, outcome: Outcome, scores: Mapping[str, TaskScore]) -> Bundle:
    """Exports the outcome of a run to `config.out`, its record and scores in the manifest."""
    spearman = {task: score.spearman.all for task, score in scores.items()}
    if len(scores) == len(STS_TASKS):
        spearman["STS mean"] = sts.mean_of_tasks(scores)
    return export(
        outcome.encoder,
        Path(config.out),
        name=Path(config.out).resolve().name,
        backbone=config.backbone,
        objective=config.objective,
        run={
            "config": asdict(config),
            "environment": environment(),
            "corpus": _counts(outcome.census),
            "best_step": outcome.best.step,
        },
        scores={outcome.metric: outcome.best.score, **spearman},
    )


def sts_scores(outcome: Outcome, stream: TextIO) -> dict[str, TaskScore]:
    """The score of the outcome's encoder on each of its tasks."""
    if not outcome.tasks:
        return {}
    return sts.evaluate(encode_visibly(outcome.encoder.encode, stream), outcome.tasks)


def _judges(config: RunConfig, corpus: Corpus, stream: TextIO) -> tuple[Selection, dict[str, Subsets]]:
    """What chooses the best weights, and the STS tasks that judge them; says which of those the data lacks."""
    if config.eval_data is None:
        return by_self_retrieval(corpus), {}
    data = Path(config.eval_data)
    selection = by_stsb_dev(data)
    tasks = {name: files.load(data) for name, files in STS_TASKS.items() if files.present(data)}
    if absent := [name for name in STS_TASKS if name not in tasks]:
        print(f"{data} lacks {', '.join(absent)}: the final scores go without", file=stream)
    return selection, tasks


def _initial(config: RunConfig, device: torch.device) -> State:
    """Step 0: every weight that is new drawn from the seed."""
    torch.manual_seed(config.seed)
    encoder = Encoder.load(config.backbone, pooling=config.pooling).to(device)
    objective = OBJECTIVES[config.objective].build(config.params, encoder.dim)
    if objective.needs.teacher:
        raise ConfigError(f"objective {config.objective} needs a teacher, and there is no way yet to name one")
    objective.to(device)
    optimiser = adamw(
        [*encoder.parameters(), *objective.parameters()],
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        fused=device.type in ("cpu", "cuda", "mps"),
    )
    return State(
        encoder=encoder,
        objective=objective,
        optimiser=optimiser,
        rng=torch.Generator(device).manual_seed(config.seed),
    )


def _loop(state: State, setting: Setting, taken_up: bool, stream: TextIO) -> None:
    config, total = setting.config, setting.total_steps
    lines = Record(setting.folder, step=state.step if taken_up else -1)
    progress = Progress(stream, total=total, done=state.step)
    progress.say(_headline(setting, state.encoder.device, state.step if taken_up else None))
    try:
        with interruptible() as stop:
            train(state, setting, lines, progress, stop=stop)
    finally:
        progress.close()
        lines.close()
    best = state.best
    if best is not None:
        progress.say(f"best: {setting.metric} {best.score:.4f} at step {best.step}")
        if best.step == 0:
            progress.say(
                f"no step was better than {config.backbone} as it was: "
                f"the result is its own weights with {config.pooling} pooling"
            )


def _headline(setting: Setting, device: torch.device, resumed: int | None) -> str:
    config, census = setting.config, setting.corpus.census
    precision = "bf16" if setting.autocast else "fp32"
    begin = "" if resumed is None else f", from step {resumed}"
    return (
        f"{config.objective} on {config.backbone}, {config.pooling} pooling: "
        f"{census.sentences} sentences of {setting.corpus.name} ({census.duplicates} duplicates and "
        f"{census.blank} blank lines dropped, {len(census.held_out)} held out), "
        f"{setting.total_steps} steps of {config.batch_size}{begin}, {precision} on {device}"
    )


def _surroundings(corpus: Corpus, device: torch.device, autocast: torch.dtype | None) -> dict[str, Any]:
    return {
        **environment(),
        "device": str(device),
        "precision": "bf16" if autocast else "fp32",
        "corpus": {"name": corpus.name, **_counts(corpus.census)},
    }


def _counts(census: Census) -> dict[str, Any]:
    return {
        "sentences": census.sentences,
        "held_out": len(census.held_out),
        "duplicates": census.duplicates,
        "blank": census.blank,
        "digest": census.digest,
    }


def _check_folders(config: RunConfig, resume: bool) -> None:
    """A folder that would stop the run at its end stops it before it begins."""
    out = Path(config.out)
    if out.exists() and not (out / bundle.MANIFEST).exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists and is not a bundle: choose another --out")
    if resume:
        record.stored(Path(config.run))
    else:
        record.refuse_second(Path(config.run))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        TemporaryDirectory(dir=out.parent).cleanup()  # the bundle will be written beside its place
    except OSError as error:
        raise RunError(f"--out {out}: {error.strerror}") from error
