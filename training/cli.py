"""The command line of `python -m training`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from models.bundle import BundleError
from models.disk import verdict
from models.encoder import Encoder
from models.export import ExportError
from models.pooling import POOLINGS
from models.sources import SourceError
from training import record, run
from training.checkpoint import CheckpointError
from training.config import ConfigError, RunConfig, from_preset
from training.corpus import CorpusError
from training.evaluation import sts
from training.evaluation.pairs import STS_TASKS, DataError
from training.evaluation.vectors import EvaluationError
from training.hardware import HardwareError
from training.loop import DivergedError, InterruptedRun
from training.objectives import OBJECTIVES
from training.progress import encode_visibly
from training.record import RunError

TASKS = ("sts",)
BAD_INPUT = (
    BundleError,
    CheckpointError,
    ConfigError,
    CorpusError,
    DataError,
    HardwareError,
    RunError,
    SourceError,
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2, without the usage text."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code is 0, 2 for bad input, 1 for a failure, 130 after Ctrl-C."""
    options = parser().parse_args(arguments)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own, one for each file it opens
    set_verbosity_error()  # type: ignore[no-untyped-call]  # no report on weights that pooling does without
    try:
        return int(options.command(options))
    except BAD_INPUT as error:
        return _fail(error, 2)
    except (DivergedError, EvaluationError, ExportError) as error:
        return _fail(error, 1)
    except OSError as error:
        return _fail(*verdict(error))
    except InterruptedRun as error:
        return _fail(f"{error}; the same command with --resume goes on", 130)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def parser() -> Parser:
    """The commands and their options."""
    top = Parser(prog="python -m training", description="Train sentence encoders and judge them.")
    commands = top.add_subparsers(required=True, metavar="train|evaluate|list")
    _add_train(commands.add_parser("train", help="train, evaluate and export an encoder"))
    _add_evaluate(commands.add_parser("evaluate", help="judge a bundle or a backbone"))
    listing = commands.add_parser("list", help="objectives with their presets and ablations, and tasks")
    listing.set_defaults(command=_list)
    return top


def _add_train(command: argparse.ArgumentParser) -> None:
    command.add_argument("objective", choices=list(OBJECTIVES))
    command.add_argument("--backbone", metavar="NAME|DIR", help="minilm, a folder or a hub id (default: minilm)")
    command.add_argument("--corpus", nargs="+", metavar="FILE", help="text files, a sentence a line; .gz and .xz too")
    command.add_argument("--eval-data", metavar="DIR", help="SentEval's data: choose the best by STS-B dev")
    command.add_argument("--preset", metavar="NAME[+ABLATION]", help="published values (default: the backbone's)")
    command.add_argument("--max-steps", type=int, metavar="N")
    command.add_argument("--out", metavar="DIR", help="folder of the bundle (default: artifacts/OBJECTIVE)")
    command.add_argument("--seed", type=int, metavar="S")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other value of the run")
    command.add_argument("--resume", action="store_true", help="go on where the run of this name was stopped")
    command.set_defaults(command=_train)


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="BUNDLE_OR_BACKBONE")
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="SentEval's data")
    command.add_argument("--tasks", type=_tasks, default=["sts"], metavar="TASK,…", help="sts (default)")
    command.add_argument("--pooling", choices=list(POOLINGS), help="default: the bundle's or backbone's own")
    command.add_argument("--json", type=Path, metavar="FILE", help="write every score there")
    command.set_defaults(command=_evaluate)


def _train(options: argparse.Namespace) -> int:
    config = resolve(options)
    outcome = run.fit(config, sys.stderr, resume=options.resume)
    scores = run.sts_scores(outcome, sys.stderr)
    if scores:
        print(sts.table(scores))
    bundle = run.publish(config, outcome, scores)
    print(f"{bundle.folder}: {outcome.metric} {outcome.best.score:.4f} at step {outcome.best.step}")
    return 0


def resolve(options: argparse.Namespace) -> RunConfig:
    """The run that the options of `train` describe; with `--resume` the stored one, which they must not contradict.

    Raises:
        ConfigError, RunError: there is no such run; the message names the option.
    """
    preset = from_preset(options.objective, backbone=options.backbone or "minilm", preset=options.preset)
    named = ("objective", "backbone", "preset", "eval_data", "max_steps", "out", "seed")
    given: dict[str, Any] = {name: getattr(options, name) for name in named if getattr(options, name) is not None}
    if options.corpus:
        given["corpus"] = tuple(options.corpus)
    if options.out:
        given["run"] = str(Path("runs") / Path(options.out).resolve().name)
    given |= preset.parse(options.set)
    wanted = preset.override(given)
    if not options.resume:
        return wanted
    stored = record.stored(Path(wanted.run))
    if differences := stored.differences(stored.override(given)):
        raise ConfigError(f"--resume goes on with the run as it was; changed: {', '.join(differences)}")
    return stored


def _evaluate(options: argparse.Namespace) -> int:
    tasks = {name: files.load(options.data) for name, files in STS_TASKS.items()}
    encoder = Encoder.load(options.source, pooling=options.pooling)
    scores = sts.evaluate(encode_visibly(encoder.encode, sys.stderr), tasks)
    print(sts.table(scores))
    if options.json:
        content = {
            "source": options.source,
            "pooling": encoder.pooling,
            "max_length": encoder.max_length,
            "sts": {task: score.to_json() for task, score in scores.items()},
            "sts_mean": sts.mean_of_tasks(scores),
        }
        record.write_whole(options.json, json.dumps(content, indent=2) + "\n")
    return 0


def _list(_options: argparse.Namespace) -> int:
    for name, recipe in OBJECTIVES.items():
        print(f"{name}: {recipe.summary}")
        for preset, values in recipe.presets.items():
            print(
                f"  {preset}: batch {values.batch_size}, learning rate {values.learning_rate:g}, "
                f"{values.pooling} pooling, epochs {values.epochs} ({values.source})"
            )
        for ablation, changes in recipe.ablations.items():
            print(f"  +{ablation}: {', '.join(f'{key}={value}' for key, value in changes.items())}")
    print(f"tasks: {', '.join(TASKS)}")
    return 0


def _tasks(text: str) -> list[str]:
    tasks = text.split(",")
    for task in tasks:
        if task not in TASKS:
            raise argparse.ArgumentTypeError(f"no task {task!r}; there is {', '.join(TASKS)}")
    return tasks


def _fail(reason: object, code: int) -> int:
    print(f"python -m training: {reason}", file=sys.stderr)
    return code
