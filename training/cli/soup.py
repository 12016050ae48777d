"""`soup`: average the weights of several encoders. `rebuild`: train the encoders of a recipe, and average them."""

from __future__ import annotations

import argparse
import shlex
import sys

from models.bundle.bundle import Bundle
from models.encoder.encoder import Encoder
from models.export import destination
from models.export.extraction import cosines_between
from training.checkpoints.publish import sts_scores
from training.evaluation import sts
from training.evaluation.pairs import sts_tasks
from training.evaluation.selection import by_stsb_dev
from training.machine.interrupt import InterruptedRun, terminable
from training.studies.rebuild import Rebuild, rebuild
from training.studies.soup import SoupRecipe, make_soup


def soup(options: argparse.Namespace) -> int:
    """Average the weights of encoders, evaluate the result if there is evaluation data, and export it as a bundle."""
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


def rebuild_encoder(options: argparse.Namespace) -> int:
    """Train the encoders of a recipe, and average them.

    Return 1 if a score differs from the expected score by more than its tolerance, and 130 after Ctrl-C or SIGTERM.
    """
    plan, met = Rebuild.read(options.file), True
    try:
        with terminable():
            for step, made in rebuild(plan, options.data, options.corpus, sys.stderr):
                met &= _reported(step, made)
    except (InterruptedRun, KeyboardInterrupt) as stop:
        print(f"{str(stop) or 'interrupted'}; the same command continues", file=sys.stderr)
        return 130
    if not met:
        return 1
    print(f"to serve it: make promote MODEL={plan.out.name} DATA={shlex.quote(str(options.data))}")
    return 0


def _reported(step: Rebuild, made: Bundle) -> bool:
    """Print the scores of `made`, the result of `step`. Return whether all scores are within their tolerances."""
    print(made.folder)
    scores = step.compared(made)
    for score in scores:
        print(score, file=sys.stdout if score.met else sys.stderr)
    if step.adapter:
        mean, least = cosines_between(Encoder.load(made.folder), Encoder.load(step.adapter))
        print(f"cosine to {step.adapter}, the adapter in the repository: mean {mean:.5f}, minimum {least:.5f}")
    if not scores:
        print(f"{step.study.file} contains no expected scores, so no scores were compared")
    return all(score.met for score in scores)
