"""`soup`: average several encoders, tuned from the same start, to a bundle."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from models.export import destination
from training.checkpoints.publish import sts_scores
from training.evaluation import sts
from training.evaluation.pairs import sts_tasks
from training.evaluation.selection import by_stsb_dev
from training.studies.soup import GRID, SoupRecipe, make_soup


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument(
        "sources", nargs="+", metavar="BUNDLE|BACKBONE", help="encoders with the same starting weights and pooling"
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the bundle")
    command.add_argument(
        "--weights", type=_numbers, metavar="W,…", help="weight of each encoder (default: equal weights)"
    )
    command.add_argument(
        "--greedy", action="store_true", help="greedy soup: add an encoder only if the STS-B dev score does not fall"
    )
    command.add_argument("--towards", metavar="SOURCE", help="also average with the encoder that they were tuned from")
    command.add_argument(
        "--share",
        type=float,
        metavar="S",
        help=f"weight of the --towards encoder (default: best of {GRID[0]:g}, {GRID[1]:g} … 1 on STS-B dev)",
    )
    command.add_argument(
        "--eval-data",
        type=Path,
        metavar="DIR",
        help="folder of SentEval's data, to select on STS-B dev and evaluate on STS",
    )
    command.set_defaults(command=soup)


def soup(options: argparse.Namespace) -> int:
    """Average and export, and evaluate if there is evaluation data."""
    mixing = SoupRecipe(weights=options.weights, greedy=options.greedy, towards=options.towards, share=options.share)
    destination.refuse_foreign(options.out)
    data = options.eval_data
    selection, tasks = (by_stsb_dev(data), sts_tasks(data)) if data else (None, {})
    cooked = make_soup(options.sources, mixing, selection, sys.stderr)
    scores = sts_scores(cooked.encoder, tasks, sys.stderr)
    if scores:
        print(sts.table(scores))
    made = cooked.publish(options.out, scores)
    print(f"{made.folder}: {cooked}")
    return 0


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between, got {text!r}") from None
