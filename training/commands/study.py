"""`study`: a grid of runs with seeds, and what can be said of their differences."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.lock import locked
from training.record import write_whole
from training.study.description import Study, settings
from training.study.page import page
from training.study.plan import FOLDER, PLAN, Plan, folder_named, state
from training.study.results import RESULTS, collect, read
from training.study.schedule import STOPPED, carry_out_all
from training.study.summary import RESAMPLES, summaries
from training.study.table import table


def spelt_out(arguments: Sequence[str]) -> list[str]:
    """`study FILE.toml` is `study run FILE.toml`."""
    match arguments:
        case ["study", file, *rest] if file.endswith(".toml"):
            return ["study", "run", file, *rest]
    return [*arguments]


def add(commands: Any) -> None:
    """The command, its own commands and their options."""
    study = commands.add_parser("study", help="many runs of one question: train, compare, report")
    actions = study.add_subparsers(required=True, metavar="run|report|status")

    command = actions.add_parser("run", help="every run that is not finished yet; a file alone is run, too")
    command.add_argument("file", type=Path, metavar="FILE.toml")
    command.add_argument("--data", metavar="DIR", help="SentEval's and BEIR's data, to judge every run by")
    command.add_argument("--corpus", nargs="+", metavar="FILE", help="text, a sentence a line (default: Python's docs)")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of an axis a list: [0, 1]")
    command.add_argument("--jobs", type=_count, default=1, metavar="N", help="runs at once (default: 1)")
    command.add_argument("--out", type=Path, metavar="DIR", help=f"folder of the study (default: {FOLDER}/NAME)")
    command.set_defaults(command=run)

    command = actions.add_parser("report", help="means, intervals and figures of the finished runs")
    command.add_argument("source", type=Path, metavar="FILE.toml|DIR")
    command.add_argument("--against", metavar="ARM", help="what the others are compared with (default: the first)")
    command.add_argument("--resamples", type=_count, default=RESAMPLES, metavar="N", help=f"default: {RESAMPLES}")
    command.add_argument("--html", type=Path, metavar="FILE", help="a page with figures, in one file")
    command.add_argument("--out", type=Path, metavar="DIR", help="folder of the study, where a file is named")
    command.set_defaults(command=report)

    command = actions.add_parser("status", help="how far each run is")
    command.add_argument("source", type=Path, metavar="FILE.toml|DIR")
    command.add_argument("--out", type=Path, metavar="DIR", help="folder of the study, where a file is named")
    command.set_defaults(command=status)


def run(options: argparse.Namespace) -> int:
    """Carries it out; the exit code is 1 if a run failed or is at work elsewhere, 130 after Ctrl-C or SIGTERM."""
    study = Study.read(options.file)
    named = {"eval_data": options.data, "corpus": options.corpus}
    given = {key: value for key, value in named.items() if value is not None}
    plan = Plan.of(study.override({**settings(options.set), **given}))
    plan.check_files()
    folder = options.out or FOLDER / study.name
    with locked(folder):
        plan.keep(folder)
        try:
            failures = carry_out_all(plan.trials, folder, sys.stderr, jobs=options.jobs)
        except KeyboardInterrupt:
            print("interrupted; the same command goes on", file=sys.stderr)
            return STOPPED
        finally:
            collect(plan.trials, folder)
    elsewhere = sum(failure.elsewhere for failure in failures)
    counts = {"failed": len(failures) - elsewhere, "are at work elsewhere": elsewhere}
    said = ", ".join(f"{count} runs {what}" for what, count in counts.items() if count)
    print(f"{folder / RESULTS}: {said or 'every run finished'}")
    return 1 if failures else 0


def report(options: argparse.Namespace) -> int:
    """Prints the tables, writes the page."""
    folder = folder_named(options.source, options.out)
    about = Plan.kept(folder) if (folder / PLAN).exists() else Plan(folder.resolve().name, "", ())
    found = summaries(read(folder), folder, against=options.against, resamples=options.resamples)
    print(table(*found))
    if options.html:
        write_whole(options.html, page(about.name, about.about, *found))
    return 0


def status(options: argparse.Namespace) -> int:
    """A line a run, and how many are finished."""
    folder = folder_named(options.source, options.out)
    plan = Plan.kept(folder)
    states = {trial.id: state(trial, folder) for trial in plan.trials}
    for trial in plan.trials:
        print(f"{trial.id}  {trial.title}: {states[trial.id]}")
    print(f"{sum(each == 'finished' for each in states.values())} of {len(states)} runs are finished")
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)
