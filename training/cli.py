"""The command line of `python -m training`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from models import reader
from models.bundle import BundleError
from models.disk import verdict
from models.export import ExportError
from models.sources import SourceError
from training.checkpoint import CheckpointError
from training.commands import (
    data,
    evaluate,
    listing,
    postprocess,
    pretrain,
    promote,
    rebuild,
    replay,
    soup,
    study,
    train,
)
from training.config import ConfigError
from training.corpus import CorpusError
from training.diverged import DivergedError
from training.evaluation.pairs import DataError
from training.evaluation.subjects import SubjectError
from training.evaluation.vectors import EvaluationError
from training.hardware import HardwareError
from training.ingredients import SoupError
from training.lock import LockError
from training.loop import InterruptedRun
from training.postprocess.base import PostprocessError
from training.promotion.ledger import PromotionError
from training.record import RunError

COMMANDS = {
    "train": train,
    "pretrain": pretrain,
    "evaluate": evaluate,
    "study": study,
    "promote|rollback": promote,
    "postprocess": postprocess,
    "soup": soup,
    "rebuild": rebuild,
    "data": data,
    "list": listing,
    "replay": replay,
}
BAD_INPUT = (
    BundleError,
    CheckpointError,
    ConfigError,
    CorpusError,
    DataError,
    HardwareError,
    LockError,
    PostprocessError,
    PromotionError,
    RunError,
    SoupError,
    SourceError,
    SubjectError,
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2, without the usage text."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code is 0, 2 for bad input, 1 for a failure, 130 after Ctrl-C."""
    options = parser().parse_args(study.spelt_out(sys.argv[1:] if arguments is None else arguments))
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own, one for each file it opens
    set_verbosity_error()  # type: ignore[no-untyped-call]  # no report on weights that pooling does without
    try:
        status = int(options.command(options))
        reader.flush()
        return status
    except BAD_INPUT as error:
        return _fail(error, 2)
    except (DivergedError, EvaluationError, ExportError) as error:
        return _fail(error, 1)
    except OSError as error:
        return reader.GONE if reader.has_gone(error) else _fail(*verdict(error))
    except InterruptedRun as error:
        return _fail(f"{error}; the same command with --resume goes on", 130)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def parser() -> Parser:
    """The commands and their options."""
    top = Parser(prog="python -m training", description="Train sentence encoders and judge them.")
    commands = top.add_subparsers(required=True, metavar="|".join(COMMANDS))
    for command in COMMANDS.values():
        command.add(commands)
    return top


def _fail(reason: object, code: int) -> int:
    print(f"python -m training: {reason}", file=sys.stderr)
    return code
