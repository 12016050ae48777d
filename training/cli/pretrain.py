"""`pretrain`: train a masked language model from random or existing weights, as a start for encoders."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from training.checkpoints import record
from training.checkpoints.record import RunError
from training.config import ConfigError, without_conflicts
from training.machine.interrupt import terminable
from training.pretraining.config import PretrainConfig
from training.pretraining.run import fit
from training.pretraining.start import backbone_fields


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument(
        "--corpus",
        nargs="+",
        metavar="FILE",
        help="corpus files: text with one sentence per line, or any source that train accepts",
    )
    command.add_argument(
        "--text-column", metavar="NAME", help="column of a table with the texts (default: text or sentence)"
    )
    command.add_argument("--backbone", metavar="NAME|DIR", help="BERT to continue from (default: random weights)")
    command.add_argument("--tokenizer", metavar="NAME|DIR", help="source of the WordPiece vocabulary (default: minilm)")
    command.add_argument("--out", metavar="DIR", help="folder of the model (default: artifacts/mlm)")
    command.add_argument("--seed", type=int, metavar="S")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set any other option of the run"
    )
    command.add_argument("--resume", action="store_true", help="continue the stopped run of this name")
    command.set_defaults(command=pretrain)


def pretrain(options: argparse.Namespace) -> int:
    """Train, and write the model's folder."""
    config = resolve(options)
    with terminable():
        fit(config, sys.stderr, resume=options.resume)
    print(f"{config.out}: isosphere train simcse --backbone {shlex.quote(config.out)}")
    return 0


def resolve(options: argparse.Namespace) -> PretrainConfig:
    """Return the configuration of the options.

    With `--resume`, return the stored one if the options do not contradict it.

    Raises:
        ConfigError, RunError, SourceError: there is no such run, or backbone; the message names the option.
    """
    named = ("text_column", "backbone", "tokenizer", "out", "seed")
    given: dict[str, Any] = {name: getattr(options, name) for name in named if getattr(options, name) is not None}
    if options.corpus:
        given["corpus"] = tuple(options.corpus)
    if options.out:
        given["run"] = str(Path("runs") / Path(options.out).resolve().name)
    given |= without_conflicts(PretrainConfig().parse(options.set), given)
    if not options.resume:
        backbone = given.get("backbone")
        return PretrainConfig().override(given if backbone is None else backbone_fields(backbone) | given)
    folder = Path(given.get("run", PretrainConfig.run))
    if not record.has_run(folder):
        raise RunError(f"{folder} holds no run")
    stored = record.parsed(folder / record.CONFIG, PretrainConfig.from_json)
    if differences := stored.differences(stored.override(given)):
        raise ConfigError(f"--resume goes on with the run as it was; changed: {', '.join(differences)}")
    return stored
