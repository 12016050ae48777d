"""`soup`: average the weights of several encoders. `rebuild`: train the encoders of a recipe, and average them."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from models.bundle.bundle import Bundle
from models.encoder.encoder import Encoder
from models.export import destination
from models.export.extraction import cosines_between
from training.checkpoints.publish import sts_scores
from training.cli.options import add_corpus
from training.evaluation import sts
from training.evaluation.pairs import sts_tasks
from training.evaluation.selection import by_stsb_dev
from training.machine.interrupt import InterruptedRun, terminable
from training.studies.rebuild import Rebuild, rebuild
from training.studies.soup import GRID, SoupRecipe, make_soup


def add_soup(command: argparse.ArgumentParser) -> None:
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
    """Average the encoders and export the bundle. Evaluate it if there is evaluation data."""
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


def add_rebuild(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE.toml")
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of SentEval's data")
    add_corpus(command)
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
    """Print the scores, and return whether all are within their tolerances."""
    print(made.folder)
    scores = step.compared(made)
    for score in scores:
        print(score, file=sys.stdout if score.met else sys.stderr)
    if step.adapter:
        mean, least = cosines_between(Encoder.load(made.folder), Encoder.load(step.adapter))
        print(f"cosine to {step.adapter}, the adapter in the repository: mean {mean:.5f}, least {least:.5f}")
    if not scores:
        print(f"{step.study.file} expects no scores: nothing was compared")
    return all(score.met for score in scores)
