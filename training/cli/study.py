"""`study`: train a grid of configurations with several seeds each, and test the differences of their scores."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from models.bundle.disk import make_folder, write_whole
from models.errors import none_of
from training.cli.train import without_conflicts
from training.evaluation.bootstrap import RESAMPLES
from training.machine.interrupt import locked
from training.studies.description import Study, file_of, parse_settings
from training.studies.page import page
from training.studies.papers import PAGES, PAPERS, RECORDED, describe_papers, files_of
from training.studies.plan import FOLDER, PLAN, Plan, plan_of, state, study_folder
from training.studies.results import RESULTS, Result, RunRecord, collect_results, finished, read_results
from training.studies.schedule import STOPPED, Carrier, Processes, run_trials
from training.studies.summary import metrics_left_out, summaries
from training.studies.table import table
from training.studies.trial import StudyError

OPTION = {"eval_data": "--data", "corpus": "--corpus"}
"""Options that set a key of a study, by the name of the key. All other keys are set by `--set`."""


def listed(options: argparse.Namespace) -> int:
    """Print a paragraph about each study of this repository, or only about the studies of one paper.

    Raises:
        StudyError: no studies belong to the paper that the user named.
    """
    if options.paper and options.paper not in PAPERS:
        raise StudyError(f"paper {none_of(options.paper, PAPERS)}")
    print(describe_papers([options.paper] if options.paper else list(PAPERS)))
    return 0


def pages(options: argparse.Namespace) -> int:
    """Write one page for each paper. The page compares the paper's tables and figures with the recorded results.

    Raises:
        StudyError: the folder of the recorded results does not exist.
    """
    folder, results = options.to or PAGES, options.results or RECORDED
    if not results.is_dir():
        raise StudyError(f"--results: {results} is not a folder")
    make_folder(folder)
    for paper in PAPERS:
        for name, content in files_of(paper, results).items():
            write_whole(folder / name, content)
            print(folder / name)
    return 0


def run(options: argparse.Namespace) -> int:
    """Run the study. Return 1 if a run failed or is active in another process, and 130 after Ctrl-C or SIGTERM."""
    study = Study.read(file_of(options.file))
    study = study.as_published() if options.published else study
    named = {"eval_data": options.data, "corpus": options.corpus}
    given = {key: value for key, value in named.items() if value is not None}
    study = study.override({**without_conflicts(parse_settings(options.set), given, OPTION), **given})
    plan = Plan(study.name, study.about, study.trials())
    plan.check_files()
    name = f"{study.name}-published" if options.published else study.name
    folder = options.out or FOLDER / name
    record = RunRecord(options.record, name) if options.record else None
    jobs = options.jobs or (len(plan.trials) if options.on else 1)  # Ray starts as many runs as it has room for.
    with _carrier(options) as carry_out, locked(folder):
        plan.save(folder)
        try:
            failures = run_trials(plan.trials, folder, sys.stderr, carry_out, jobs=jobs, record=record)
        except KeyboardInterrupt:
            print("interrupted; the same command continues", file=sys.stderr)
            return STOPPED
        finally:
            collect_results(plan.trials, folder, record.find(plan.trials) if record else {})
    elsewhere = sum(failure.elsewhere for failure in failures)
    counts = {"failed": len(failures) - elsewhere, "are active in other processes": elsewhere}
    said = ", ".join(f"{count} runs {what}" for what, count in counts.items() if count)
    print(f"{folder / RESULTS}: {said or 'every run finished'}")
    return 1 if failures else 0


@contextmanager
def _carrier(options: argparse.Namespace) -> Iterator[Carrier]:
    """Yield the executor of runs, which uses processes of this machine or tasks of a Ray cluster.

    Raises:
        StudyError: an option for Ray is given without `--on ray`.
    """
    if options.on == "ray":
        from training.studies.on_ray import tasks

        with tasks(options.ray_address, threads=options.threads) as carrier:
            yield carrier
    elif options.ray_address or options.threads:
        raise StudyError(f"{'--ray-address' if options.ray_address else '--threads'} needs --on ray")
    else:
        yield Processes()


def report(options: argparse.Namespace) -> int:
    """Print the tables of a study's results. If `--html` names a file, write a page with the results to this file.

    Raises:
        StudyError: the record named by `--record` contains no run of the study.
    """
    folder = study_folder(options.source, options.out)
    if options.record:
        about = plan_of(options.source, folder)
        found = finished(about.trials, folder, RunRecord(options.record).find(about.trials))
        results = [Result.checked(each) for each in found]
        if not results:
            raise StudyError(f"{options.record}: no run of {about.name} is in it")
    else:
        about = Plan.load(folder) if (folder / PLAN).exists() else Plan(folder.resolve().name, "", ())
        results = read_results(folder / RESULTS)
    compared = summaries(results, folder, against=options.against, resamples=options.resamples or RESAMPLES)
    unsaid = metrics_left_out(results)
    print(table(*compared))
    if unsaid:
        print("", *unsaid, sep="\n")
    if options.html:
        write_whole(options.html, page(about.name, " ".join([about.about, *unsaid]).strip(), *compared))
    return 0


def status(options: argparse.Namespace) -> int:
    """Print the state of each run, and the number of finished runs."""
    folder = study_folder(options.source, options.out)
    plan = plan_of(options.source, folder) if options.record else Plan.load(folder)
    recorded = RunRecord(options.record).find(plan.trials) if options.record else {}
    states = {trial.id: state(trial, folder, recorded=trial.id in recorded) for trial in plan.trials}
    for trial in plan.trials:
        print(f"{trial.id}  {trial.title}: {states[trial.id]}")
    print(f"{sum(each == 'finished' for each in states.values())} of {len(states)} runs are finished")
    return 0
