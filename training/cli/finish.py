"""`finish`: end a stopped or diverged run, and make a bundle of its best weights."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from training import run
from training.checkpoints import record
from training.cli.train import evaluate_and_publish
from training.config import check_folders
from training.machine.interrupt import terminable


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("run", type=Path, metavar="RUN", help="folder of the run, e.g. runs/dclr")
    command.add_argument(
        "--out", metavar="DIR", help="folder of the bundle (default: the folder that the run was given)"
    )
    command.set_defaults(command=finish)


def finish(options: argparse.Namespace) -> int:
    """Evaluate and publish, as at the end of `train`."""
    moved = {"run": str(options.run)} | ({} if options.out is None else {"out": options.out})
    config = record.stored_config(options.run).override(moved)
    check_folders(config)
    with terminable():
        return evaluate_and_publish(config, run.finish(config, sys.stderr))
