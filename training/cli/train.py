"""`train`: train an encoder and export a bundle. `finish`: export a stopped run. `replay`: repeat a diverged step."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from models.encoder.encoder import Encoder
from training import loop, run
from training.checkpoints import record
from training.checkpoints.checkpoint import CHECKPOINT
from training.checkpoints.publish import Outcome, publish, sts_scores
from training.config import ConfigError, Configuration, RunConfig, check_folders, from_preset, preset_of
from training.data.corpus import has_passages
from training.evaluation import known_item, sts
from training.evaluation.known_item import gain
from training.machine.interrupt import InterruptedRun, terminable
from training.objectives import OBJECTIVES
from training.objectives.base import PASSAGES_SUFFIX

C = TypeVar("C", bound=Configuration)


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
                says += f"; isosphere finish {run_folder} exports the best weights so far"
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
        print(next_commands(bundle.folder, _comparison(config)), file=sys.stderr)
    return 0


def next_commands(bundle: Path, comparison: Sequence[str]) -> str:
    """Return a line with the commands that serve and promote a new encoder.

    `comparison` contains options of `promote`. They name the data on which `promote` compares the new encoder with the
    served encoder.
    """
    serve = shlex.join(["isosphere", "serve", "--bundle", str(bundle)])
    promote = shlex.join(["isosphere", "promote", str(bundle), *comparison])
    return f"next: {serve} tries the encoder, {promote} serves it by default"


def _comparison(config: RunConfig) -> list[str]:
    if config.eval_data:
        return ["--data", config.eval_data]
    column = ["--text-column", config.text_column] if config.text_column else []
    return ["--corpus", *config.corpus, *column] if config.corpus else []


def _compare(config: RunConfig, encoder: Encoder) -> None:
    """Print retrieval scores before and after training, on held-out passages that were not used to select weights."""
    collection = known_item.test_collection(run.open_run_corpus(config))
    if collection.queries:
        start = Encoder.load(config.backbone, pooling=config.pooling).eval()
        for line in gain(start.encode, encoder.encode, collection, encoder.prompts):
            print(line, file=sys.stderr)


def resolve(options: argparse.Namespace) -> RunConfig:
    """Return the configuration that the options describe.

    With `--resume`, return the stored configuration if the options do not contradict it.

    Raises:
        ConfigError: the options are incomplete or contradict each other; the message names the option.
        RunError: with `--resume`, there is no run to continue.
    """
    base = _described(options)
    names = (
        *("objective", "backbone", "text_column", "eval_data", "dev_data", "teacher"),
        *("preset", "max_steps", "out", "seed"),
    )
    given = given_fields(options, names, base)
    wanted = base.override(given)
    check_folders(wanted)
    if "dev_tasks" in given and (wanted.dev_data or not wanted.eval_data):
        raise ConfigError("dev_tasks: needs --eval-data without --dev-data, otherwise the setting has no effect")
    if options.resume:
        if options.config and "run" not in given:
            raise ConfigError("--resume: name the run to continue, by --out or --set run=FOLDER")
        if options.force:
            raise ConfigError("--resume continues a run and --force replaces it: leave one of them out")
        return resumed(wanted.run, given, RunConfig)
    return _in_free_folders(wanted, given) if options.config else wanted


def _described(options: argparse.Namespace) -> RunConfig:
    """Return the configuration of the file `--config` or of a preset, without the changes by other options.

    Raises:
        ConfigError: neither an objective nor a file is named, or an option contradicts the file.
    """
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
            raise ConfigError(f"--{option}: the configuration in {options.config} already sets it")
    if options.objective not in (None, config.objective):
        raise ConfigError(f"{options.config} has the objective {config.objective}, not {options.objective}")
    return config


def _on_passages(options: argparse.Namespace, backbone: str) -> str | None:
    """Return the name of the preset for passages, if the run should use it.

    Return None if the corpus has no passages, if the objective has no preset for passages for this backbone, or if
    `--set` names an augmentation.
    """
    recipe = OBJECTIVES[options.objective]
    preset = f"{preset_of(recipe, backbone)}{PASSAGES_SUFFIX}"
    if preset not in recipe.presets or any(each.startswith("augmentation=") for each in options.set):
        return None
    return preset if has_passages(options.corpus or (), column=options.text_column) else None


def given_fields(options: argparse.Namespace, names: Sequence[str], base: Configuration) -> dict[str, Any]:
    """Return the fields that the options set, with their values.

    The result can contain the fields in `names`, the two fields `corpus` and `run` (derived from `--out`), and the
    fields given by `--set`. `base` defines which fields `--set` accepts.

    Raises:
        ConfigError: a setting of `--set` is unknown, of the wrong type, or also given by another option.
    """
    given: dict[str, Any] = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.corpus:
        given["corpus"] = tuple(options.corpus)
    if options.out:
        given["run"] = str(Path("runs") / Path(options.out).resolve().name)
    return given | without_conflicts(base.parse(options.set), given)


def resumed(folder: str, given: Mapping[str, Any], kind: type[C]) -> C:
    """Return the stored configuration of the run to resume.

    `given` has the fields that the options set. `kind` is the class of the configuration.

    Raises:
        RunError: `folder` contains no run.
        ConfigError: the options contradict the stored configuration.
    """
    stored = record.stored_config(Path(folder), kind)
    if differences := stored.differences(stored.override(given)):
        raise ConfigError(f"--resume continues the run with its stored options; you changed: {', '.join(differences)}")
    return stored


def without_conflicts(
    put: Mapping[str, Any], given: Mapping[str, Any], spelt: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return `put`, the settings of `--set`, after checking that no other option sets the same field.

    `given` has the fields of the other options. `spelt` maps a field to its option, if the names differ. `put` may set
    the field `run` even if `given` has this field, because the value in `given` is only derived from `--out`.

    Raises:
        ConfigError: `put` and `given` set the same field, other than `run`.
    """
    if twice := sorted(put.keys() & given.keys() - {"run"}):
        option = (spelt or {}).get(twice[0], "--" + twice[0].replace("_", "-"))
        raise ConfigError(f"--set {twice[0]}: {option} sets the same field; leave one of them out")
    return dict(put)


def _in_free_folders(wanted: RunConfig, given: Mapping[str, Any]) -> RunConfig:
    """Return `wanted`, the configuration of an earlier run, with new output folders.

    The output folders are the fields `run` and `out`. The new folders have the names of the earlier run's folders, with
    the first free number as a suffix. The fields in `given`, which the options set, keep their values.

    Raises:
        ConfigError: there are several processes, and `given` lacks `run` or `out`.
    """
    if given.keys() >= {"run", "out"}:
        return wanted
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "--config with several processes needs --out, because each process would choose its own free folder"
        )
    free = next(n for n in count(2) if not any(Path(f"{folder}-{n}").exists() for folder in (wanted.run, wanted.out)))
    return wanted.override({"run": f"{wanted.run}-{free}", "out": f"{wanted.out}-{free}"} | dict(given))


def finish(options: argparse.Namespace) -> int:
    """Evaluate and publish the best weights of a stopped or diverged run, as `train` does at its end."""
    moved = {"run": str(options.run)} | ({} if options.out is None else {"out": options.out})
    stored = record.stored_config(options.run, RunConfig)
    config = stored.override(moved)
    check_folders(config)
    if Path(config.out).resolve() != Path(stored.out).resolve():
        run.refuse_trained(Path(config.out), advice="choose another --out")
    with terminable():
        return evaluate_and_publish(config, run.finish(config, sys.stderr))


def replay(options: argparse.Namespace) -> int:
    """Repeat the step at which a run diverged.

    Print the loss with its terms, other values of the step, and the sentences whose views or gradients are not finite.
    """
    config = record.stored_config(options.run, RunConfig)
    file = loop.last_divergence(options.run)
    step, values, odd = run.replay(config, file)
    print(f"{file}: step {step}: {loop.format_terms(values)}")
    for sentence in odd:
        print(f"  not finite: {sentence}")
    return 0
