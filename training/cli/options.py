"""Options of all training commands. A command's module is loaded only when it runs, so `--help` is fast."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from models.cli.command_line import Parser, add_key
from models.cli.table import about, described
from models.names import RUNTIME_NAMES
from training.objectives import OBJECTIVES
from training.postprocess import POSTPROCESSES

Command = Callable[[argparse.Namespace], int]

STUDY = "name of a study, its file, or the folder of its runs"
REQUIRE = "tasks that must have a score: sts, transfer or names (default: sts if only --data is given, otherwise none)"
SERVED = Path("artifacts/default")
"""Path of the bundle that is served by default."""
ADAPTED = Path("artifacts/adapted")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options of one command.

    The attribute `load` of the result loads the command's function.

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


def _later(module: str, function: str) -> Callable[[], Command]:
    """Return a function that loads `function` from a module of `training.cli`.

    The module is loaded late, because importing torch takes seconds.
    """

    def load() -> Command:
        command: Command = getattr(import_module(f"training.cli.{module}"), function)
        return command

    return load


def _action(actions: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = actions.add_parser(name, **described(summary, example))
    return added


def _add_corpus(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--corpus",
        nargs="+",
        default=[],
        metavar="FILE",
        help="corpus files: text with one sentence per line, or any source that train accepts",
    )


def _add_text_column(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--text-column", metavar="NAME", help="column of a table with the texts (default: text or sentence)"
    )


def _add_set_and_resume(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=int, metavar="S", help="seed of all random numbers (default: 42)")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set any other option of the run"
    )
    command.add_argument("--resume", action="store_true", help="continue the stopped run of this name")


def _add_default(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--default", type=Path, default=SERVED, metavar="PATH", help=f"path of the served bundle (default: {SERVED})"
    )


def _train(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "objective", nargs="?", choices=list(OBJECTIVES), metavar="OBJECTIVE", help=", ".join(OBJECTIVES)
    )
    command.add_argument("--config", type=Path, metavar="FILE", help="config.json of a run, to repeat it")
    command.add_argument("--backbone", metavar="NAME|DIR", help="encoder to train (default: minilm)")
    command.add_argument(
        "--corpus",
        nargs="+",
        metavar="FILE",
        help="text (one sentence per line) or tables: files, folders, patterns, hf://datasets/… (default: Python's "
        "docs)",
    )
    command.add_argument("--text-column", metavar="NAME", help="column of a table (default: text or sentence)")
    command.add_argument("--eval-data", metavar="DIR", help="SentEval's data, to select weights by STS-B dev")
    command.add_argument("--dev-data", metavar="FILE", help="pairs to select weights: sentence1,sentence2,score")
    command.add_argument("--teacher", metavar="BUNDLE", help="reference encoder (default: SimCSE trains one first)")
    command.add_argument("--preset", metavar="NAME[+ABLATION]", help="published settings (default: the backbone's)")
    command.add_argument(
        "--max-steps", type=int, metavar="N", help="maximum training steps (default: the preset's epochs)"
    )
    command.add_argument("--out", metavar="DIR", help="folder of the bundle (default: artifacts/OBJECTIVE)")
    _add_set_and_resume(command)
    command.add_argument("--force", action="store_true", help="replace the run of this name")
    command.set_defaults(load=_later("train", "train"))


def _adapt(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "corpus",
        nargs="+",
        metavar="FILE",
        help="documents: JSON lines, CSV or Parquet (columns text and, optionally, title), or text with one document "
        "per line",
    )
    _add_text_column(command)
    command.add_argument(
        "--objective", choices=list(OBJECTIVES), default="simcse", help="training objective (default: simcse)"
    )
    command.add_argument("--backbone", default="minilm", metavar="NAME|DIR", help="encoder to adapt (default: minilm)")
    command.add_argument("--max-steps", type=int, metavar="N", help="maximum training steps (default: three epochs)")
    command.add_argument(
        "--out", type=Path, default=ADAPTED, metavar="DIR", help=f"folder of the bundle (default: {ADAPTED})"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write the comparison to this JSON file")
    command.add_argument("--resume", action="store_true", help="continue the stopped training")
    command.add_argument("--force", action="store_true", help="replace an earlier run of this name")
    command.add_argument(
        "--promote", action="store_true", help="promote the result to the default bundle if it is not worse"
    )
    command.set_defaults(load=_later("adapt", "adapt"))


def _pretrain(command: argparse.ArgumentParser) -> None:
    _add_corpus(command)
    _add_text_column(command)
    command.add_argument("--backbone", metavar="NAME|DIR", help="BERT to continue from (default: random weights)")
    command.add_argument("--tokenizer", metavar="NAME|DIR", help="source of the WordPiece vocabulary (default: minilm)")
    command.add_argument("--out", metavar="DIR", help="folder of the model (default: artifacts/mlm)")
    _add_set_and_resume(command)
    command.set_defaults(load=_later("pretrain", "pretrain"))


def _evaluate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "source",
        metavar="BUNDLE|BACKBONE|URL",
        help="encoder to evaluate; bundles, minilm and its adapters run as ONNX graphs",
    )
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of SentEval's and BEIR's data")
    command.add_argument(
        "--tasks",
        type=_evaluate_tasks,
        default=["sts"],
        metavar="TASK,…",
        help="tasks: sts, transfer, retrieval, geometry, all, or the name of one task, such as STSB (default: sts)",
    )
    command.add_argument(
        "--torch", action="store_true", help="evaluate the torch encoder instead of the bundle's graph"
    )
    command.add_argument(
        "--pooling", type=_pooling, metavar="POOLING", help="override the encoder's pooling; runs on torch"
    )
    command.add_argument("--engine", choices=RUNTIME_NAMES, help="engine of the bundle's graph (default: onnxruntime)")
    command.add_argument("--precision", metavar="P", help="numeric precision of the engine or torch (default: fp32)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write all results to this JSON file")
    command.add_argument("--html", type=Path, metavar="FILE", help="write a report to this HTML file")
    command.add_argument("--record", action="store_true", help="write the scores into an adapter's manifest and card")
    command.add_argument(
        "--beside",
        type=Path,
        nargs="+",
        default=[],
        metavar="JSON",
        help="results of other evaluations to include in the report",
    )
    add_key(command)
    command.set_defaults(load=_later("evaluate", "evaluate"))


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

    action = _action(
        actions,
        "list",
        "list the studies of the papers' tables and figures, with their questions and requirements",
        "study list dclr",
    )
    action.add_argument(
        "paper", nargs="?", metavar="PAPER", help="dclr, gs-infonce, whitenedcse or imsimcse (default: all)"
    )
    action.set_defaults(load=_later("study", "listed"))

    action = _action(
        actions,
        "run",
        "run all unfinished runs of a study; `study FILE.toml` means the same",
        "study run dclr/table-2 --data DIR",
    )
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
    action.add_argument(
        "--jobs",
        type=_count,
        metavar="N",
        help="number of concurrent runs (default: 1; with --on ray as many as the cluster has room for)",
    )
    action.add_argument("--on", choices=("ray",), help="ray: run on the machines of a Ray cluster, one run on each GPU")
    action.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="address of the cluster (default: RAY_ADDRESS, or a new Ray on this machine)",
    )
    action.add_argument(
        "--threads",
        type=_count,
        metavar="N",
        help="CPUs of each run on Ray (default: all CPUs of a node, divided by its number of GPUs)",
    )
    action.add_argument("--out", type=Path, metavar="DIR", help="folder of the study (default: runs/studies/NAME)")
    action.add_argument("--record", type=Path, metavar="FILE", help="add finished runs to FILE, and skip runs in it")
    action.set_defaults(load=_later("study", "run"))

    action = _action(
        actions,
        "report",
        "report means, intervals and figures of the finished runs",
        "study report dclr/table-2 --html report.html",
    )
    _add_source(action)
    action.add_argument("--against", metavar="ARM", help="baseline arm of the comparisons (default: the first)")
    action.add_argument("--resamples", type=_count, metavar="N", help="number of bootstrap resamples (default: 1000)")
    action.add_argument("--html", type=Path, metavar="FILE", help="write a page with figures to this HTML file")
    action.set_defaults(load=_later("study", "report"))

    action = _action(actions, "status", "show the progress of each run", "study status dclr/table-2")
    _add_source(action)
    action.set_defaults(load=_later("study", "status"))

    action = _action(
        actions, "pages", "write docs/papers: each table and figure next to the recorded results", "study pages"
    )
    action.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="folder of the recorded results (default: benchmarks/results/studies)",
    )
    action.add_argument("--to", type=Path, metavar="DIR", help="folder of the pages (default: docs/papers)")
    action.set_defaults(load=_later("study", "pages"))


def _add_source(action: argparse.ArgumentParser) -> None:
    action.add_argument("source", type=Path, metavar="NAME|FILE.toml|DIR", help=STUDY)
    action.add_argument("--out", type=Path, metavar="DIR", help="folder of the study, if the source is a file")
    action.add_argument("--record", type=Path, metavar="FILE", help="include the runs of the study in this record")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def _promote(command: argparse.ArgumentParser) -> None:
    command.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder of the bundle, such as artifacts/simcse")
    command.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of SentEval's data; without it no labels are used"
    )
    command.add_argument(
        "--corpus", nargs="+", default=[], metavar="FILE", help="corpus for the comparison without --data"
    )
    _add_text_column(command)
    command.add_argument(
        "--retrieval", metavar="NAME", help="retrieval collection of --data for the comparison, such as scifact"
    )
    command.add_argument(
        "--margin", type=float, default=0.5, metavar="POINTS", help="accepted loss in points (default: 0.5)"
    )
    command.add_argument("--require", type=_names, metavar="TASK,…", help=REQUIRE)
    command.add_argument(
        "--report", type=Path, nargs="+", default=[], metavar="FILE", help="evaluation files to attach"
    )
    command.add_argument(
        "--force", action="store_true", help="promote despite failed checks, which are recorded in the ledger"
    )
    _add_default(command)
    command.set_defaults(load=_later("promote", "promote"))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _rollback(command: argparse.ArgumentParser) -> None:
    _add_default(command)
    command.set_defaults(load=_later("promote", "rollback"))


def _postprocess(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", choices=list(POSTPROCESSES), metavar="NAME", help=", ".join(POSTPROCESSES))
    command.add_argument("source", metavar="SOURCE", help="encoder: minilm, a folder, a bundle or a hub id")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the bundle")
    _add_corpus(command)
    _add_text_column(command)
    command.add_argument("--pooling", type=_pooling, metavar="POOLING", help="pooling (default: the source's pooling)")
    command.add_argument(
        "--max-length", type=int, metavar="N", help="maximum tokens of a text (default: the source's maximum length)"
    )
    command.add_argument(
        "--eval-data", type=Path, metavar="DIR", help="folder of SentEval's data, to score the bundle for its manifest"
    )
    command.add_argument("--seed", type=int, default=42, metavar="S", help="seed of the fit (default: 42)")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set a parameter of the fit")
    command.set_defaults(load=_later("postprocess", "postprocess"))


def _soup(command: argparse.ArgumentParser) -> None:
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
    command.add_argument(
        "--towards", metavar="SOURCE", help="also average with the encoder from which the others were tuned"
    )
    command.add_argument(
        "--share",
        type=float,
        metavar="S",
        help="weight of the --towards encoder (default: best of -1, -0.9 … 1 on STS-B dev)",
    )
    command.add_argument(
        "--eval-data",
        type=Path,
        metavar="DIR",
        help="folder of SentEval's data, to select on STS-B dev and evaluate on STS",
    )
    command.set_defaults(load=_later("soup", "soup"))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None


def _rebuild(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE.toml", help="recipe, such as studies/recipes/default.toml")
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of SentEval's data")
    _add_corpus(command)
    command.set_defaults(load=_later("soup", "rebuild_encoder"))


def _data(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="get|list|verify|documentation|sentences")

    action = _action(
        actions, "get", "download and check data; existing data is not downloaded again", "data get sts scifact"
    )
    action.add_argument(
        "names", nargs="+", metavar="NAME", help="data, such as sts or scifact; `isosphere data list` lists all"
    )
    action.set_defaults(load=_later("data", "get"))
    _add_folder(action)

    action = _action(actions, "list", "list the available data, and which of it is downloaded", "data list")
    action.set_defaults(load=_later("data", "show"))
    _add_folder(action)

    action = _action(
        actions, "verify", "check downloaded data by counts and checksums, without the network", "data verify"
    )
    action.add_argument("names", nargs="*", metavar="NAME", help="data to check (default: all downloaded data)")
    action.set_defaults(load=_later("data", "verify"))
    _add_folder(action)

    action = _action(
        actions,
        "documentation",
        "make a retrieval collection of CPython's documentation, without the network",
        "data documentation --to data",
    )
    action.set_defaults(load=_later("data", "documented"))
    _add_folder(action)

    action = _action(
        actions,
        "sentences",
        "make a training corpus from documents, one sentence per line",
        "data sentences notes.jsonl --out corpus.txt",
    )
    action.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="text files, or .jsonl (.ndjson) files with title and text"
    )
    action.add_argument("--out", type=Path, required=True, metavar="FILE", help="corpus file to write")
    action.set_defaults(load=_later("data", "sentences"))


def _add_folder(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--to", type=Path, metavar="DIR", help="folder of the data (default: $ISOSPHERE_DATA, or the cache folder)"
    )


def _list(command: argparse.ArgumentParser) -> None:
    """Add no options, because the command has none."""
    command.set_defaults(load=_later("list", "show"))


def _finish(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=Path, metavar="RUN", help="folder of the run, e.g. runs/dclr")
    command.add_argument(
        "--out", metavar="DIR", help="folder of the bundle (default: the folder in the run's configuration)"
    )
    command.set_defaults(load=_later("train", "finish"))


def _replay(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=Path, metavar="RUN", help="folder of the run, e.g. runs/dclr")
    command.set_defaults(load=_later("train", "replay"))


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
    "list": _list,
    "finish": _finish,
    "replay": _replay,
}
"""Functions that add a command's options, by the command's name."""
