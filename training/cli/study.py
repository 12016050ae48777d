"""`study`: train a grid of configurations with several seeds each, and test the differences of their scores."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from models.bundle.disk import make_folder, write_whole
from training.cli.options import without_conflicts
from training.machine.interrupt import locked
from training.studies.catalogue import PAPERS, describe_papers
from training.studies.description import Study, file_of, parse_settings
from training.studies.page import page
from training.studies.papers import PAGES, RECORDED, page_of
from training.studies.plan import FOLDER, PLAN, Plan, state, study_folder
from training.studies.results import RESULTS, collect_results, read_results
from training.studies.schedule import STOPPED, run_trials
from training.studies.summary import RESAMPLES, metrics_left_out, summaries
from training.studies.table import table

OPTION = {"eval_data": "--data", "corpus": "--corpus"}
"""Keys of a study that have their own option besides `--set`, with this option."""


def add_study(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="list|run|report|status|pages")

    action = actions.add_parser(
        "list", help="list the studies of the papers' tables and figures, with their questions and requirements"
    )
    action.add_argument("paper", nargs="?", choices=list(PAPERS), metavar="PAPER", help=f"{', '.join(PAPERS)}")
    action.set_defaults(command=listed)

    action = actions.add_parser("run", help="run all unfinished runs of a study; `study FILE.toml` means the same")
    action.add_argument(
        "file", type=Path, metavar="NAME|FILE.toml", help="study, such as dclr/table-2, or your own file"
    )
    action.add_argument("--published", action="store_true", help="use the paper's backbone and settings")
    action.add_argument("--data", metavar="DIR", help="folder of SentEval's and BEIR's data, to evaluate every run")
    action.add_argument(
        "--corpus", nargs="+", metavar="FILE", help="text files with one sentence per line (default: Python's docs)"
    )
    action.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set an option; the value of an axis is a list, such as [0, 1]",
    )
    action.add_argument("--jobs", type=_count, default=1, metavar="N", help="concurrent runs (default: 1)")
    action.add_argument("--out", type=Path, metavar="DIR", help=f"folder of the study (default: {FOLDER}/NAME)")
    action.set_defaults(command=run)

    action = actions.add_parser("report", help="report means, intervals and figures of the finished runs")
    action.add_argument("source", type=Path, metavar="NAME|FILE.toml|DIR")
    action.add_argument("--against", metavar="ARM", help="arm that the others are compared with (default: the first)")
    action.add_argument(
        "--resamples",
        type=_count,
        default=RESAMPLES,
        metavar="N",
        help=f"number of bootstrap resamples (default: {RESAMPLES})",
    )
    action.add_argument("--html", type=Path, metavar="FILE", help="write a page with figures to this HTML file")
    action.add_argument("--out", type=Path, metavar="DIR", help="folder of the study, if the source is a file")
    action.set_defaults(command=report)

    action = actions.add_parser("status", help="show the progress of each run")
    action.add_argument("source", type=Path, metavar="NAME|FILE.toml|DIR")
    action.add_argument("--out", type=Path, metavar="DIR", help="folder of the study, if the source is a file")
    action.set_defaults(command=status)

    action = actions.add_parser("pages", help="write docs/papers: each table and figure next to the recorded results")
    action.add_argument(
        "--results",
        type=Path,
        default=RECORDED,
        metavar="DIR",
        help=f"folder of the recorded results (default: {RECORDED})",
    )
    action.add_argument("--to", type=Path, default=PAGES, metavar="DIR", help=f"folder of the pages (default: {PAGES})")
    action.set_defaults(command=pages)


def listed(options: argparse.Namespace) -> int:
    """Print a paragraph about each study of this repository."""
    print(describe_papers([options.paper] if options.paper else list(PAPERS)))
    return 0


def pages(options: argparse.Namespace) -> int:
    """Write a page for each paper that compares its tables with the recorded results."""
    make_folder(options.to)
    for paper in PAPERS:
        file = options.to / f"{paper}.md"
        write_whole(file, page_of(paper, options.results))
        print(file)
    return 0


def run(options: argparse.Namespace) -> int:
    """Run the study. Return 1 if a run failed or is active in another process, and 130 after Ctrl-C or SIGTERM."""
    study = Study.read(file_of(options.file))
    study = study.as_published() if options.published else study
    named = {"eval_data": options.data, "corpus": options.corpus}
    given = {key: value for key, value in named.items() if value is not None}
    plan = Plan.of(study.override({**without_conflicts(parse_settings(options.set), given, OPTION), **given}))
    plan.check_files()
    folder = options.out or FOLDER / (f"{study.name}-published" if options.published else study.name)
    with locked(folder):
        plan.save(folder)
        try:
            failures = run_trials(plan.trials, folder, sys.stderr, jobs=options.jobs)
        except KeyboardInterrupt:
            print("interrupted; the same command goes on", file=sys.stderr)
            return STOPPED
        finally:
            collect_results(plan.trials, folder)
    elsewhere = sum(failure.elsewhere for failure in failures)
    counts = {"failed": len(failures) - elsewhere, "are at work elsewhere": elsewhere}
    said = ", ".join(f"{count} runs {what}" for what, count in counts.items() if count)
    print(f"{folder / RESULTS}: {said or 'every run finished'}")
    return 1 if failures else 0


def report(options: argparse.Namespace) -> int:
    """Print the tables of a study's results, and write its page."""
    folder = study_folder(options.source, options.out)
    about = Plan.load(folder) if (folder / PLAN).exists() else Plan(folder.resolve().name, "", ())
    results = read_results(folder)
    found = summaries(results, folder, against=options.against, resamples=options.resamples)
    unsaid = metrics_left_out(results)
    print(table(*found))
    if unsaid:
        print("", *unsaid, sep="\n")
    if options.html:
        write_whole(options.html, page(about.name, " ".join([about.about, *unsaid]).strip(), *found))
    return 0


def status(options: argparse.Namespace) -> int:
    """Print the state of each run, and the number of finished runs."""
    folder = study_folder(options.source, options.out)
    plan = Plan.load(folder)
    states = {trial.id: state(trial, folder) for trial in plan.trials}
    for trial in plan.trials:
        print(f"{trial.id}  {trial.title}: {states[trial.id]}")
    print(f"{sum(each == 'finished' for each in states.values())} of {len(states)} runs are finished")
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)
