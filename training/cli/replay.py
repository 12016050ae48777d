"""`replay`: repeat and inspect the step at which a run diverged."""

from __future__ import annotations

import argparse
from pathlib import Path

from training import loop
from training.checkpoints import record
from training.run import replay


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("run", type=Path, metavar="RUN", help="folder of the run, e.g. runs/dclr")
    command.set_defaults(command=show)


def show(options: argparse.Namespace) -> int:
    """Print the terms of the loss, and the sentences whose views are not finite."""
    config = record.stored_config(options.run)
    file = loop.last_divergence(options.run)
    step, values, odd = replay(config, file)
    print(f"{file}: step {step}: {loop.format_terms(values)}")
    for sentence in odd:
        print(f"  not finite: {sentence}")
    return 0
