"""`train`: train an encoder and export a bundle. `finish`: export a stopped run. `replay`: repeat a diverged step."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from models.encoder.encoder import Encoder
from training import loop, run
from training.checkpoints import record
from training.checkpoints.checkpoint import CHECKPOINT
from training.checkpoints.publish import Outcome, publish, sts_scores
from training.cli.options import add_set_and_resume, given_fields, resumed
from training.config import ConfigError, RunConfig, check_folders, from_preset, preset_of
from training.data.corpus import has_passages
from training.evaluation import known_item, sts
from training.evaluation.known_item import gain
from training.machine.interrupt import InterruptedRun, terminable
from training.objectives import OBJECTIVES
from training.objectives.base import PASSAGES_SUFFIX


def add_train(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "objective", nargs="?", choices=list(OBJECTIVES), metavar="OBJECTIVE", help=", ".join(OBJECTIVES)
    )
    command.add_argument("--config", type=Path, metavar="FILE", help="config.json of a run, to repeat it")
    command.add_argument("--backbone", metavar="NAME|DIR", help="encoder to train (default: minilm)")
    command.add_argument(
        "--corpus",
        nargs="+",
        metavar="FILE",
        help="text (one sentence per line) or tables: files, folders, patterns, hf://datasets/… (default: Python's "
        "docs)",
    )
    command.add_argument("--text-column", metavar="NAME", help="column of a table (default: text or sentence)")
    command.add_argument("--eval-data", metavar="DIR", help="SentEval's data, to select the best by STS-B dev")
    command.add_argument("--dev-data", metavar="FILE", help="own pairs to select the best: sentence1,sentence2,score")
    command.add_argument("--teacher", metavar="BUNDLE", help="reference encoder (default: SimCSE trains one first)")
    command.add_argument("--preset", metavar="NAME[+ABLATION]", help="published settings (default: the backbone's)")
    command.add_argument("--max-steps", type=int, metavar="N")
    command.add_argument("--out", metavar="DIR", help="folder of the bundle (default: artifacts/OBJECTIVE)")
    add_set_and_resume(command)
    command.add_argument("--force", action="store_true", help="replace the run of this name")
    command.set_defaults(command=train)


def train(options: argparse.Namespace) -> int:
    """Train, evaluate and publish. With several processes, only the first one evaluates and publishes."""
    config = resolve(options)
    with terminable():
        try:
            outcome = run.fit(config, sys.stderr, resume=options.resume, force=options.force)
        except InterruptedRun as stop:
            run_folder, says = shlex.quote(config.run), str(stop)
            # If there is no checkpoint, the teacher's run was interrupted.
            if (Path(config.run) / CHECKPOINT).is_file():
                says += f"; isosphere finish {run_folder} makes a bundle of the best so far"
            named = options.out or any(each.startswith("run=") for each in options.set)
            unnamed = f"--resume --set run={run_folder}" if options.config and not named else "--resume"
            raise InterruptedRun(says, again=unnamed) from stop
    return evaluate_and_publish(config, outcome) if outcome.first else 0


def evaluate_and_publish(config: RunConfig, outcome: Outcome) -> int:
    """Evaluate a run's outcome, publish it, and print the path of the bundle."""
    scores = sts_scores(outcome.encoder, outcome.tasks, sys.stderr)
    if scores:
        print(sts.table(scores))
    bundle = publish(config, outcome, scores)
    print(f"{bundle.folder}: {outcome.metric} {outcome.best.score:.4f} at step {outcome.best.step}")
    if outcome.best.step and outcome.metric == known_item.METRIC:
        _compare(config, outcome.encoder)
    if outcome.best.step:
        folder = shlex.quote(str(bundle.folder))
        print(
            f"next: isosphere serve --bundle {folder} tries it, isosphere promote {folder} serves it by default",
            file=sys.stderr,
        )
    return 0


def _compare(config: RunConfig, encoder: Encoder) -> None:
    """Report retrieval scores before and after training, on held-out passages that were not used to select weights."""
    collection = known_item.test_collection(run.open_run_corpus(config))
    if collection.queries:
        start = Encoder.load(config.backbone, pooling=config.pooling).eval()
        for line in gain(start.encode, encoder.encode, collection):
            print(line, file=sys.stderr)


def resolve(options: argparse.Namespace) -> RunConfig:
    """Return the configuration that the options describe.

    With `--resume`, return the stored configuration if the options do not contradict it.

    Raises:
        ConfigError, RunError: there is no such run; the message names the option.
    """
    base = _described(options)
    names = (
        *("objective", "backbone", "text_column", "eval_data", "dev_data", "teacher"),
        *("preset", "max_steps", "out", "seed"),
    )
    given = given_fields(options, names, base)
    wanted = base.override(given)
    check_folders(wanted)
    if options.resume:
        if options.config and "run" not in given:
            raise ConfigError("--resume: name the run that --config began, by --out or --set run=FOLDER")
        if options.force:
            raise ConfigError("--resume goes on with a run, --force replaces it: leave one of them out")
        return resumed(wanted.run, given, RunConfig)
    return _in_free_folders(wanted, given) if options.config else wanted


def _described(options: argparse.Namespace) -> RunConfig:
    """Return the configuration of a file or preset, before the remaining options are applied."""
    if options.config is None:
        if options.objective is None:
            raise ConfigError(f"name an objective ({', '.join(OBJECTIVES)}) or a --config")
        backbone = options.backbone or "minilm"
        return from_preset(
            options.objective, backbone=backbone, preset=options.preset or _on_passages(options, backbone)
        )
    config = record.read_config(options.config, RunConfig)
    for option in ("preset", "backbone"):
        if getattr(options, option) is not None:
            raise ConfigError(f"--{option}: the run in {options.config} has its own")
    if options.objective not in (None, config.objective):
        raise ConfigError(f"{options.config} is a run of {config.objective}, not of {options.objective}")
    return config


def _on_passages(options: argparse.Namespace, backbone: str) -> str | None:
    """Return the preset for passages. None if the corpus has no passages, or the backbone has no such preset."""
    recipe = OBJECTIVES[options.objective]
    preset = f"{preset_of(recipe, backbone)}{PASSAGES_SUFFIX}"
    if preset not in recipe.presets or any(each.startswith("augmentation=") for each in options.set):
        return None
    return preset if has_passages(options.corpus or (), column=options.text_column) else None


def _in_free_folders(wanted: RunConfig, given: Mapping[str, Any]) -> RunConfig:
    """Return `wanted` with the first free folders beside the original run's, unless folders are given."""
    if given.keys() >= {"run", "out"}:
        return wanted
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--config with several processes needs --out: each would look for a free folder of its own")
    free = next(n for n in count(2) if not any(Path(f"{folder}-{n}").exists() for folder in (wanted.run, wanted.out)))
    return wanted.override({"run": f"{wanted.run}-{free}", "out": f"{wanted.out}-{free}"} | dict(given))


def add_finish(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=Path, metavar="RUN", help="folder of the run, e.g. runs/dclr")
    command.add_argument(
        "--out", metavar="DIR", help="folder of the bundle (default: the folder that the run was given)"
    )
    command.set_defaults(command=finish)


def finish(options: argparse.Namespace) -> int:
    """Evaluate and publish the best weights of a stopped or diverged run, as at the end of `train`."""
    moved = {"run": str(options.run)} | ({} if options.out is None else {"out": options.out})
    config = record.stored_config(options.run, RunConfig).override(moved)
    check_folders(config)
    with terminable():
        return evaluate_and_publish(config, run.finish(config, sys.stderr))


def add_replay(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=Path, metavar="RUN", help="folder of the run, e.g. runs/dclr")
    command.set_defaults(command=replay)


def replay(options: argparse.Namespace) -> int:
    """Repeat the step at which a run diverged. Print its terms, and the sentences whose views are not finite."""
    config = record.stored_config(options.run, RunConfig)
    file = loop.last_divergence(options.run)
    step, values, odd = run.replay(config, file)
    print(f"{file}: step {step}: {loop.format_terms(values)}")
    for sentence in odd:
        print(f"  not finite: {sentence}")
    return 0
