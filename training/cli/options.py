"""Options of all training commands.

The module of a command is loaded only when the command runs, so `--help` is fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from models.cli.command_line import Parser, add_key
from models.cli.table import about, described
from models.names import RUNTIME_NAMES
from training.objectives import OBJECTIVES
from training.postprocess import POSTPROCESSES

Command = Callable[[argparse.Namespace], int]
Add = Callable[..., argparse.Action]
"""Type of a parser's `add_argument`."""

DIR: dict[str, Any] = {"type": Path, "metavar": "DIR"}
FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
FILES: dict[str, Any] = {"nargs": "+", "metavar": "FILE"}
SET: dict[str, Any] = {"action": "append", "default": [], "metavar": "KEY=VALUE"}
"""Arguments of `add_argument` that several options share."""
STUDY = "name of a study, its file, or the folder of its runs"
REQUIRE = (
    "tasks that must have a score: sts, transfer or names (default: sts if --data is given without --retrieval, "
    "otherwise none)"
)
SERVED = Path("artifacts/default")
"""Path of the bundle that is served by default."""
ADAPTED = Path("artifacts/adapted")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options of one command.

    The attribute `load` of the result is a function that imports and returns the command's function.

    Raises:
        SystemExit: an option is wrong; the message explains it.
    """
    return parser().parse_args(_expand(arguments))


def parser() -> Parser:
    """Return the parser for all training commands."""
    top = Parser(prog="isosphere", description="Train and evaluate sentence encoders.")
    commands = top.add_subparsers(required=True, metavar="|".join(ADD_OPTIONS))
    for name, add in ADD_OPTIONS.items():
        add(commands.add_parser(name, **about(name)))
    return top


def _expand(arguments: Sequence[str]) -> list[str]:
    """Expand `study FILE.toml` to `study run FILE.toml`."""
    match arguments:
        case ["study", file, *rest] if file.endswith(".toml"):
            return ["study", "run", file, *rest]
    return [*arguments]


def _runs(command: argparse.ArgumentParser, function: str) -> None:
    """Set the function of `training.cli` that a command runs, such as `train:replay`.

    The function's module is imported only when the command runs, because importing torch takes seconds.
    """
    command.set_defaults(load=partial(resolve_name, f"training.cli.{function}"))


def _action(actions: Any, example: str, summary: str, function: str) -> Add:
    """Add a subcommand that runs `function`, and return the method that adds options to the subcommand.

    `example` begins with the names of the command and the subcommand. `summary` is a line of help.
    """
    command, name, *_ = example.split()
    action = actions.add_parser(name, **described(summary, example))
    _runs(action, f"{command}:{function}")
    return action.add_argument  # type: ignore[no-any-return]


def _add_corpus(add: Add) -> None:
    add(
        "--corpus",
        **FILES,
        default=[],
        help="corpus files: text with one sentence per line, or any source that train accepts",
    )


def _add_text_column(add: Add) -> None:
    add("--text-column", metavar="NAME", help="column of a table with the texts (default: text or sentence)")


def _add_set_and_resume(add: Add) -> None:
    add("--seed", type=int, metavar="S", help="seed of all random numbers (default: 42)")
    add("--set", **SET, help="set any other option of the run")
    add("--resume", action="store_true", help="continue the stopped run with the same --out")


def _add_default(add: Add) -> None:
    add("--default", type=Path, default=SERVED, metavar="PATH", help=f"path of the served bundle (default: {SERVED})")


def _train(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("objective", nargs="?", choices=list(OBJECTIVES), metavar="OBJECTIVE", help=", ".join(OBJECTIVES))
    add("--config", **FILE, help="config.json of a run, to repeat it")
    add("--backbone", metavar="NAME|DIR", help="encoder to train (default: minilm)")
    add(
        "--corpus",
        nargs="+",
        metavar="FILE",
        help="text (one sentence per line) or tables: files, folders, patterns, hf://datasets/… (default: Python's "
        "docs)",
    )
    add("--text-column", metavar="NAME", help="column of a table (default: text or sentence)")
    add("--eval-data", metavar="DIR", help="SentEval's data, to select weights by STS-B dev")
    add("--dev-data", metavar="FILE", help="pairs to select weights: sentence1,sentence2,score")
    add(
        "--teacher",
        metavar="BUNDLE",
        help="teacher of the objective (default: SimCSE trains one)",
    )
    add("--preset", metavar="NAME[+ABLATION]", help="named settings (default: the backbone's preset)")
    add("--max-steps", type=int, metavar="N", help="number of training steps (default: the preset's epochs)")
    add("--out", metavar="DIR", help="folder of the bundle (default: artifacts/OBJECTIVE)")
    _add_set_and_resume(add)
    add("--force", action="store_true", help="replace an earlier run with the same --out")
    _runs(command, "train:train")


def _adapt(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "corpus",
        nargs="+",
        metavar="FILE",
        help="documents: JSON lines, CSV or Parquet (columns text and, optionally, title), or text with one document "
        "per line",
    )
    _add_text_column(add)
    add("--objective", choices=list(OBJECTIVES), default="simcse", help="training objective (default: simcse)")
    add("--backbone", default="minilm", metavar="NAME|DIR", help="encoder to adapt (default: minilm)")
    add("--max-steps", type=int, metavar="N", help="number of training steps (default: three epochs)")
    add("--out", **DIR, default=ADAPTED, help=f"folder of the bundle (default: {ADAPTED})")
    add("--json", **FILE, help="write the comparison to this JSON file")
    add("--resume", action="store_true", help="continue the stopped training")
    add("--force", action="store_true", help="replace an earlier run with the same --out")
    add("--promote", action="store_true", help="promote the result to the default bundle if it is not worse")
    _runs(command, "adapt:adapt")


def _pretrain(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    _add_corpus(add)
    _add_text_column(add)
    add("--backbone", metavar="NAME|DIR", help="BERT to continue from (default: random weights)")
    add("--tokenizer", metavar="NAME|DIR", help="source of the WordPiece vocabulary (default: minilm)")
    add("--out", metavar="DIR", help="folder of the model (default: artifacts/mlm)")
    _add_set_and_resume(add)
    _runs(command, "pretrain:pretrain")


def _evaluate(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "source",
        metavar="BUNDLE|BACKBONE|URL",
        help="encoder to evaluate; bundles, minilm and its adapters run as ONNX graphs",
    )
    add("--data", **DIR, required=True, help="folder of SentEval's and BEIR's data")
    add(
        "--tasks",
        type=_evaluate_tasks,
        default=["sts"],
        metavar="TASK,…",
        help="tasks: sts, transfer, retrieval, geometry, all, or the name of one task, such as STSB (default: sts)",
    )
    add("--torch", action="store_true", help="evaluate the torch encoder instead of the bundle's graph")
    add("--pooling", type=_pooling, metavar="POOLING", help="override the encoder's pooling; runs on torch")
    add("--engine", choices=RUNTIME_NAMES, help="engine of the bundle's graph (default: onnxruntime)")
    add("--precision", metavar="P", help="numeric precision of the engine or torch (default: fp32)")
    add("--json", **FILE, help="write all results to this JSON file")
    add("--html", **FILE, help="write a report to this HTML file")
    add("--record", action="store_true", help="write the scores into an adapter's manifest and card")
    add(
        "--beside",
        type=Path,
        nargs="+",
        default=[],
        metavar="JSON",
        help="results of other evaluations to include in the report",
    )
    add_key(command)
    _runs(command, "evaluate:evaluate")


def _pooling(text: str) -> str:
    from models.encoder import pooling

    return pooling.option(text)


def _evaluate_tasks(text: str) -> list[str]:
    from training.evaluation.labelled import TRANSFER_TASKS
    from training.evaluation.pairs import STS_TASKS
    from training.evaluation.suite import TASKS

    tasks = list(TASKS) if text == "all" else text.split(",")
    for task in tasks:
        if task not in (*TASKS, *STS_TASKS, *TRANSFER_TASKS):
            known = ", ".join((*TASKS, "all", *STS_TASKS, *TRANSFER_TASKS))
            raise argparse.ArgumentTypeError(f"no task {task!r}; there is {known}")
    return tasks


def _study(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="list|run|report|status|pages")

    add = _action(
        actions,
        "study list dclr",
        "list the studies of the papers' tables and figures, with their questions and requirements",
        "listed",
    )
    add("paper", nargs="?", metavar="PAPER", help="dclr, gs-infonce, whitenedcse or imsimcse (default: all)")

    add = _action(
        actions,
        "study run dclr/table-2 --data DIR",
        "run all unfinished runs of a study; `study FILE.toml` means the same",
        "run",
    )
    add("file", type=Path, metavar="NAME|FILE.toml", help="study, such as dclr/table-2, or your own file")
    add("--published", action="store_true", help="use the paper's backbone and settings")
    add("--data", metavar="DIR", help="folder of SentEval's and BEIR's data, to evaluate every run")
    add("--corpus", **FILES, help="text files with one sentence per line (default: Python's docs)")
    add("--set", **SET, help="set an option; a key of the study's grid gets a list, such as seed=[0,1]")
    add(
        "--jobs",
        type=_count,
        metavar="N",
        help="number of concurrent runs (default: 1; with --on ray as many as the cluster has room for)",
    )
    add("--on", choices=("ray",), help="ray: run on the machines of a Ray cluster, one run on each GPU")
    add(
        "--ray-address",
        metavar="HOST:PORT",
        help="address of the cluster (default: RAY_ADDRESS, or a new Ray on this machine)",
    )
    add(
        "--threads",
        type=_count,
        metavar="N",
        help="CPUs of each run on Ray (default: all CPUs of a node, divided by its number of GPUs)",
    )
    add("--out", **DIR, help="folder of the study (default: runs/studies/NAME)")
    add("--record", **FILE, help="add finished runs to FILE, and skip runs in it")

    add = _action(
        actions,
        "study report dclr/table-2 --html report.html",
        "report means, intervals and figures of the finished runs",
        "report",
    )
    _add_source(add)
    add("--against", metavar="ARM", help="baseline arm of the comparisons (default: the first)")
    add("--resamples", type=_count, metavar="N", help="number of bootstrap resamples (default: 1000)")
    add("--html", **FILE, help="write a page with figures to this HTML file")

    add = _action(actions, "study status dclr/table-2", "show the progress of each run", "status")
    _add_source(add)

    add = _action(
        actions, "study pages", "write docs/papers: each table and figure next to the recorded results", "pages"
    )
    add("--results", **DIR, help="folder of the recorded results (default: benchmarks/results/studies)")
    add("--to", **DIR, help="folder of the pages (default: docs/papers)")


def _add_source(add: Add) -> None:
    add("source", type=Path, metavar="NAME|FILE.toml|DIR", help=STUDY)
    add("--out", **DIR, help="folder of the study, if the source is a file")
    add("--record", **FILE, help="include the runs of the study in this record")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def _promote(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("bundle", type=Path, metavar="BUNDLE", help="folder of the bundle, such as artifacts/simcse")
    add("--data", **DIR, help="folder of SentEval's data; without it no labels are used")
    add("--corpus", **FILES, default=[], help="corpus for the comparison without --data")
    _add_text_column(add)
    add("--retrieval", metavar="NAME", help="retrieval collection of --data for the comparison, such as scifact")
    add("--margin", type=float, default=0.5, metavar="POINTS", help="accepted loss in points (default: 0.5)")
    add("--require", type=_names, metavar="TASK,…", help=REQUIRE)
    add(
        "--report",
        **FILES,
        type=Path,
        default=[],
        help="files of earlier evaluations of this bundle, whose scores count for --require",
    )
    add("--force", action="store_true", help="promote despite failed checks, which are recorded in the ledger")
    _add_default(add)
    _runs(command, "promote:promote")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _rollback(command: argparse.ArgumentParser) -> None:
    _add_default(command.add_argument)
    _runs(command, "promote:rollback")


def _postprocess(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("name", choices=list(POSTPROCESSES), metavar="NAME", help=", ".join(POSTPROCESSES))
    add("source", metavar="SOURCE", help="encoder: minilm, a folder, a bundle or a hub id")
    add("--out", **DIR, required=True, help="folder of the bundle")
    _add_corpus(add)
    _add_text_column(add)
    add("--pooling", type=_pooling, metavar="POOLING", help="pooling (default: the source's pooling)")
    add("--max-length", type=int, metavar="N", help="maximum tokens of a text (default: the source's maximum length)")
    add("--eval-data", **DIR, help="folder of SentEval's data, to score the bundle for its manifest")
    add("--seed", type=int, default=42, metavar="S", help="seed of the fit (default: 42)")
    add("--set", **SET, help="set a parameter of the fit")
    _runs(command, "postprocess:postprocess")


def _soup(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("sources", nargs="+", metavar="BUNDLE|BACKBONE", help="encoders with the same starting weights and pooling")
    add("--out", **DIR, required=True, help="folder of the bundle")
    add("--weights", type=_numbers, metavar="W,…", help="weight of each encoder (default: equal weights)")
    add("--greedy", action="store_true", help="greedy soup: add an encoder only if the STS-B dev score does not fall")
    add("--towards", metavar="SOURCE", help="also average with the encoder from which the others were tuned")
    add(
        "--share",
        type=float,
        metavar="S",
        help="weight of the --towards encoder (default: best of -1, -0.9 … 1 on STS-B dev)",
    )
    add("--eval-data", **DIR, help="folder of SentEval's data, to select on STS-B dev and evaluate on STS")
    _runs(command, "soup:soup")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None


def _rebuild(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("file", type=Path, metavar="FILE.toml", help="recipe, such as studies/recipes/default.toml")
    add("--data", **DIR, required=True, help="folder of SentEval's data")
    _add_corpus(add)
    _runs(command, "soup:rebuild_encoder")


def _data(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="get|list|verify|documentation|sentences")

    add = _action(
        actions, "data get sts scifact", "download and check data; existing data is not downloaded again", "get"
    )
    add("names", nargs="+", metavar="NAME", help="data, such as sts or scifact; `isosphere data list` lists all")
    _add_folder(add)

    add = _action(actions, "data list", "list the available data, and which of it is downloaded", "show")
    _add_folder(add)

    add = _action(
        actions, "data verify", "check downloaded data by counts and checksums, without the network", "verify"
    )
    add("names", nargs="*", metavar="NAME", help="data to check (default: all downloaded data)")
    _add_folder(add)

    add = _action(
        actions,
        "data documentation --to data",
        "make a retrieval collection of CPython's documentation, without the network",
        "documented",
    )
    _add_folder(add)

    add = _action(
        actions,
        "data sentences notes.jsonl --out corpus.txt",
        "make a training corpus from documents, one sentence per line",
        "sentences",
    )
    add("files", nargs="+", **FILE, help="text files, or .jsonl (.ndjson) files with title and text")
    add("--out", **FILE, required=True, help="corpus file to write")


def _add_folder(add: Add) -> None:
    add("--to", **DIR, help="folder of the data (default: $ISOSPHERE_DATA, or the cache folder)")


def _finish(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("run", type=Path, metavar="RUN", help="folder of the run, e.g. runs/dclr")
    add("--out", metavar="DIR", help="folder of the bundle (default: the folder in the run's configuration)")
    _runs(command, "train:finish")


def _replay(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("run", type=Path, metavar="RUN", help="folder of the run, e.g. runs/dclr")
    _runs(command, "train:replay")


ADD_OPTIONS = {
    "train": _train,
    "adapt": _adapt,
    "pretrain": _pretrain,
    "evaluate": _evaluate,
    "study": _study,
    "promote": _promote,
    "rollback": _rollback,
    "postprocess": _postprocess,
    "soup": _soup,
    "rebuild": _rebuild,
    "data": _data,
    "list": lambda command: _runs(command, "list:show"),
    "finish": _finish,
    "replay": _replay,
}
"""Functions that add a command's options, by the command's name."""
