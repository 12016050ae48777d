"""The command line of `isosphere`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from models import command_line
from models.bundle.disk import error_line_and_status
from models.command_line import Parser, quieten
from models.errors import Failed, Refused, first_line, not_installed, out_of_memory
from training.machine.interrupt import InterruptedRun

COMMANDS = {
    "train": "train an encoder, evaluate it and write a bundle",
    "adapt": "make an encoder for your own documents: train, whiten partially, compare",
    "pretrain": "train a masked language model from random or BERT weights, for use as --backbone",
    "evaluate": "evaluate a bundle, a backbone or a running server",
    "study": "run a set of trainings, compare them and report the results",
    "promote": "serve a bundle if it passes verification and is not worse than the served bundle",
    "rollback": "serve the previously served bundle",
    "postprocess": "fit a transform to an encoder's vectors and write a bundle",
    "soup": "average the weights of encoders and write a bundle",
    "rebuild": "rebuild an encoder from a recipe: train the ingredients, average them, compare the scores",
    "data": "download the papers' data, or make a corpus from documents",
    "list": "list objectives, presets, ablations and tasks",
    "finish": "end a stopped or diverged run and write its best weights as a bundle",
    "replay": "repeat the step at which a run diverged",
}
"""Commands with their help.

The function `add_NAME` of a module in `training.cli` adds the options of a command. The module is imported only for its
command, because importing torch takes seconds.
"""
MODULES = {"finish": "train", "replay": "train", "rollback": "promote", "rebuild": "soup"}
"""Modules in `training.cli` of the commands that are not in a module of the same name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 for success, 1 for a failure, 2 for bad input, 130 after Ctrl-C."""
    quieten()
    try:
        return _run(parse(sys.argv[1:] if arguments is None else arguments))
    except ModuleNotFoundError as error:
        return _fail(not_installed(error), 2)
    except InterruptedRun as error:
        return _fail(f"{error}; the same command with {error.again} goes on", 130)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def _run(options: argparse.Namespace) -> int:
    try:
        status = int(options.command(options))
        command_line.flush()
        return status
    except Refused as error:
        return _fail(error, 2)
    except Failed as error:
        return _fail(error, 1)
    except OSError as error:
        return command_line.GONE if command_line.has_gone(error) else _fail(*error_line_and_status(error))
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return _fail(f"{first_line(error)}; a smaller batch_size takes less, or the same one in parts (chunk_size)", 1)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options of one command, with its function as `command`.

    Raises:
        SystemExit: an option is wrong; the message explains it.
    """
    top = Parser(prog="isosphere", description="Train and evaluate sentence encoders.")
    commands = top.add_subparsers(required=True, metavar="|".join(COMMANDS))
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == chosen:
            module = import_module(f"training.cli.{MODULES.get(name, name)}")
            getattr(module, f"add_{name}")(command)
    return top.parse_args(_expand(arguments))


def _expand(arguments: Sequence[str]) -> list[str]:
    """Expand `study FILE.toml` to `study run FILE.toml`."""
    match arguments:
        case ["study", file, *rest] if file.endswith(".toml"):
            return ["study", "run", file, *rest]
    return [*arguments]


def _fail(reason: object, code: int) -> int:
    print(f"isosphere: {reason}", file=sys.stderr)
    return code
