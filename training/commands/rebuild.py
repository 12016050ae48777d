"""`rebuild`: an encoder once more, from the file that says how it was made."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from training.interrupt import InterruptedRun, terminable
from training.rebuild import Rebuild, rebuild


def add(command: argparse.ArgumentParser) -> None:
    """Its options."""
    command.add_argument("file", type=Path, metavar="FILE.toml")
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="SentEval's data")
    command.add_argument("--corpus", nargs="+", default=[], metavar="FILE", help="as in train: text, a sentence a line")
    command.set_defaults(command=remade)


def remade(options: argparse.Namespace) -> int:
    """The exit code is 1 if a score is not the expected one, 130 after Ctrl-C or SIGTERM."""
    plan = Rebuild.read(options.file)
    try:
        with terminable():
            made = rebuild(plan, options.data, options.corpus, sys.stderr)
    except (InterruptedRun, KeyboardInterrupt) as stop:
        print(f"{str(stop) or 'interrupted'}; the same command goes on", file=sys.stderr)
        return 130
    print(made.folder)
    scores = plan.compared(made)
    for score in scores:
        print(score, file=sys.stdout if score.met else sys.stderr)
    if not all(score.met for score in scores):
        return 1
    if not scores:
        print(f"{options.file} expects no scores: nothing was compared")
    print(f"to serve it: make promote MODEL={made.folder.name} DATA={shlex.quote(str(options.data))}")
    return 0
