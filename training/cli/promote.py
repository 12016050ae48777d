"""`promote`: serve a new bundle if it passes all checks. `rollback`: serve the previous bundle again."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from training.promotion import history
from training.promotion.checks import NOT_WORSE, Decision
from training.promotion.engines import Machine
from training.promotion.place import open_place
from training.promotion.promote import Terms
from training.promotion.promote import promote as decide
from training.promotion.yardsticks import choose_yardstick

REQUIRED = ("sts",)
"""Tasks that must have a score by default, if evaluation data is given."""
CRUDE = (
    "the comparison used no human judgements: if you have queries with known answers, compare by them with "
    "--data DIR --retrieval NAME; --margin sets how much worse the bundle may be"
)
TOLD = "a running server loads it after SIGHUP or POST /admin/reload"


def promote(options: argparse.Namespace) -> int:
    """Check the bundle, serve it if it passes, and print all checks.

    If the bundle is refused, return 1 and print the checks to stderr.
    """
    scored = options.data and not options.retrieval
    require = options.require if options.require is not None else REQUIRED if scored else ()
    terms = Terms(margin=options.margin, require=require, reports=options.report, force=options.force)
    place = open_place(options.default)
    yardstick = partial(choose_yardstick, options.data, options.corpus, options.retrieval, column=options.text_column)
    decision = decide(options.bundle, place, terms, yardstick, stream=sys.stderr, machine=Machine())
    if decision.outcome == "refused":
        print(f"{options.bundle}: refused, {place.default} stays as it is\n{_listed(decision)}", file=sys.stderr)
        if not options.data and NOT_WORSE in (check.name for check in decision.failed):
            print(CRUDE, file=sys.stderr)
        return 1
    forced = ", forced" if decision.failed else ""
    print(_listed(decision))
    print(f"{place.default}: now {options.bundle} ({place.copies / str(decision.copy)}{forced}); {TOLD}")
    return 0


def _listed(decision: Decision) -> str:
    return "\n".join(f"  {'ok' if check.passed else 'NO':2}  {check.name}: {check.says}" for check in decision.checks)


def rollback(options: argparse.Namespace) -> int:
    """Serve the previous bundle again, and print its name."""
    place = open_place(options.default)
    line = history.rollback(place, stream=sys.stderr)
    print(f"{place.default}: back to {line['candidate']['name']} ({place.copies / line['copy']}); {TOLD}")
    return 0
