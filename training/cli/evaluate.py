"""`evaluate`: score an encoder on STS, transfer and retrieval tasks."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.bundle.adapter import MANIFEST
from models.bundle.disk import write_whole
from models.bundle.sources import hub_id, opened_adapter, resolve
from models.export.destination import check_outside_bundles
from models.export.extraction import record
from models.remotes.base import without_user
from training.checkpoints.progress import with_progress
from training.evaluation import suite
from training.evaluation.pairs import DataError
from training.evaluation.report.page import render
from training.evaluation.subjects import open_subject
from training.evaluation.suite import load_data, tables
from training.machine.interrupt import terminable
from training.promotion.evaluations import scores


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate the encoder, print tables of the scores, and write the requested report and JSON files.

    Raises:
        DataError: the data, a file of `--beside` or an output path can't be used; the error is raised before the
            evaluation.
    """
    if options.beside and not options.html:
        raise DataError("--beside: the other evaluations appear in the report, so add --html FILE")
    check_writable(*filter(None, (options.json, options.html)))
    if options.record and (options.pooling or options.precision):
        raise DataError(
            "--record: the adapter's record needs the scores of its own pooling and precision: leave one of the "
            "options out"
        )
    recording = _adapter(options.source) if options.record else None
    beside = [_evaluation(file) for file in options.beside]
    given = load_data(options.data, options.tasks)
    with ExitStack() as opened:
        opened.enter_context(terminable())
        judged = open_subject(
            options.source,
            pooling=options.pooling,
            by_torch=options.torch,
            engine=options.engine,
            precision=options.precision,
            key=options.key,
        )
        opened.enter_context(closing(judged))
        visible = replace(judged, encode=with_progress(judged.encode, sys.stderr))
        evaluation = suite.evaluate(visible, given, command=_command(options))
    print(tables(evaluation))
    if recording:
        record(recording, scores([evaluation]))
    if options.json:
        write_whole(options.json, json.dumps(evaluation, indent=2, allow_nan=False) + "\n")
    if options.html:
        write_whole(options.html, render([evaluation, *beside]))
    return 0


def _adapter(source: str) -> Path:
    """Return the folder of the adapter `source`. The scores are recorded in this folder.

    Raises:
        DataError: `source` is not an adapter with a manifest.
    """
    found = None if hub_id(source) else opened_adapter(resolve(source))
    if found is None or found.manifest is None:
        raise DataError(
            f"--record: {without_user(source)} is not the folder of an adapter with {MANIFEST}; `make promote` records "
            "the scores of a bundle"
        )
    return found.folder


def _command(options: argparse.Namespace) -> str:
    """Return the command line for the report, without an API key or a URL's password."""
    words = ["isosphere", "evaluate", without_user(options.source), "--data", str(options.data)]
    words += ["--tasks", ",".join(options.tasks)]
    words += ["--torch"] if options.torch else []
    words += ["--pooling", options.pooling] if options.pooling else []
    words += ["--engine", options.engine] if options.engine else []
    words += ["--precision", options.precision] if options.precision else []
    return shlex.join(words)


def _evaluation(file: Path) -> dict[str, Any]:
    """Read an evaluation from a file that `--json` wrote.

    Raises:
        DataError: the file can't be read, or a report can't show its content.
    """
    try:
        evaluation: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        render([evaluation])
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from error
    except RecursionError as error:
        raise DataError(f"{file}: nested too deeply for an evaluation") from error
    except ValueError as error:
        raise DataError(f"{file}: {error}") from error
    return evaluation


def check_writable(*files: Path) -> None:
    """Check that the output files can be written, before an evaluation that takes minutes.

    Raises:
        DataError: the folder of a file is missing or read-only, a path is a folder, a pipe or a device, or two paths
            are the same.
        BundleError: a file would be inside a bundle.
    """
    for file in files:
        check_outside_bundles(file)
        if not file.parent.is_dir():
            raise DataError(f"{file}: {file.parent} is not a folder")
        if file.is_dir():
            raise DataError(f"{file}: expected a file to write, got a folder")
        if file.exists() and not file.is_file():
            raise DataError(f"{file}: expected a file to write, got a pipe or a device")
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise DataError(f"{file}: {file.parent} is not writable")
    if len({os.path.realpath(file) for file in files}) < len(files):
        raise DataError(f"{files[0]}: is named by both --json and --html; name two different files")
