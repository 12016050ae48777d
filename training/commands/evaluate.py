"""`evaluate`: an encoder against the tasks."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from models.encoder import Encoder
from models.pooling import POOLINGS
from training import record
from training.evaluation import sts
from training.evaluation.pairs import STS_TASKS
from training.progress import encode_visibly

TASKS = ("sts",)


def add(commands: Any) -> None:
    """The command and its options."""
    command = commands.add_parser("evaluate", help="judge a bundle or a backbone")
    command.add_argument("source", metavar="BUNDLE_OR_BACKBONE")
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="SentEval's data")
    command.add_argument("--tasks", type=_tasks, default=["sts"], metavar="TASK,…", help="sts (default)")
    command.add_argument("--pooling", choices=list(POOLINGS), help="default: the bundle's or backbone's own")
    command.add_argument("--json", type=Path, metavar="FILE", help="write every score there")
    command.set_defaults(command=evaluate)


def evaluate(options: argparse.Namespace) -> int:
    """Prints the table, and writes every score."""
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


def _tasks(text: str) -> list[str]:
    tasks = text.split(",")
    for task in tasks:
        if task not in TASKS:
            raise argparse.ArgumentTypeError(f"no task {task!r}; there is {', '.join(TASKS)}")
    return tasks
