"""`rebuild`: make an encoder again from the file that describes it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from models.bundle.bundle import Bundle
from models.encoder.encoder import Encoder
from models.export.extraction import likeness
from training.machine.interrupt import InterruptedRun, terminable
from training.studies.rebuild import Rebuild, rebuild


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("file", type=Path, metavar="FILE.toml")
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of SentEval's data")
    command.add_argument(
        "--corpus",
        nargs="+",
        default=[],
        metavar="FILE",
        help="corpus files: text with one sentence per line, or any source that train accepts",
    )
    command.set_defaults(command=rebuild_encoder)


def rebuild_encoder(options: argparse.Namespace) -> int:
    """Rebuild the encoder. Return 1 if a score differs from the expected one, and 130 after Ctrl-C or SIGTERM."""
    plan, met = Rebuild.read(options.file), True
    try:
        with terminable():
            for step, made in rebuild(plan, options.data, options.corpus, sys.stderr):
                met &= _reported(step, made)
    except (InterruptedRun, KeyboardInterrupt) as stop:
        print(f"{str(stop) or 'interrupted'}; the same command goes on", file=sys.stderr)
        return 130
    if not met:
        return 1
    print(f"to serve it: make promote MODEL={plan.out.name} DATA={shlex.quote(str(options.data))}")
    return 0


def _reported(step: Rebuild, made: Bundle) -> bool:
    """Print the scores, and return whether all are as expected."""
    print(made.folder)
    scores = step.compared(made)
    for score in scores:
        print(score, file=sys.stdout if score.met else sys.stderr)
    if step.adapter:
        mean, least = likeness(Encoder.load(made.folder), Encoder.load(step.adapter))
        print(f"cosine to {step.adapter}, the adapter in the repository: mean {mean:.5f}, least {least:.5f}")
    if not scores:
        print(f"{step.study.file} expects no scores: nothing was compared")
    return all(score.met for score in scores)
