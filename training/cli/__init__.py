"""Entry point of the training commands of `isosphere`: parse the command line, and run one command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from models.bundle.disk import error_line_and_status
from models.cli import command_line
from models.cli.command_line import quieten
from models.errors import Failed, Refused, first_line, not_installed, out_of_memory
from training.cli.options import Command, parse
from training.machine.interrupt import InterruptedRun


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code.

    The exit code is 0 for success, 1 for a failure, 2 for bad input, 130 after Ctrl-C, and 141 if the reader closed
    stdout.
    """
    quieten()
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        # Outside `_run`, because an OSError of an import means a broken installation, not bad input.
        command = options.load()
        return _run(command, options)
    except ModuleNotFoundError as error:
        return _fail(not_installed(error), 2)
    except InterruptedRun as error:
        return _fail(f"{error}; resume with the same command and {error.again}", 130)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def _run(command: Command, options: argparse.Namespace) -> int:
    try:
        status = command(options)
        command_line.flush()
        return status
    except Refused as error:
        return _fail(error, 2)
    except Failed as error:
        return _fail(error, 1)
    except OSError as error:
        return command_line.GONE if command_line.has_gone(error) else _fail(*error_line_and_status(error))
    except (MemoryError, RuntimeError) as error:
        # A connection to another process is lost, as gloo (CPUs) or NCCL (GPUs) reports it.
        if "gloo/transport" in str(error) or type(error).__name__ == "DistBackendError":
            return _fail("another process of this run has ended; resume with the same command and --resume", 1)
        if not out_of_memory(error):
            raise
        return _fail(
            f"{first_line(error)}; use a smaller batch_size, or set chunk_size to encode the batch in parts", 1
        )


def _fail(reason: object, code: int) -> int:
    print(f"isosphere: {reason}", file=sys.stderr)
    return code
