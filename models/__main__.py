"""Entry point of `python -m models`, which exports bundles and adapters and exchanges them with the hub."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from models.bundle.disk import error_line_and_status
from models.cli import command_line
from models.cli.command_line import Parser
from models.cli.table import COMMANDS, about, described
from models.errors import Failed, not_installed

ENCODER = "minilm, minilm+NAME for a trained encoder of this project, or the folder or hub id of an encoder or adapter"
PLACE = "hf://org/name or org/name on the hub, a URL that fsspec supports (s3://bucket/name), or a folder"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    The exit code is 0 for success, 1 for a failure, 2 for bad input, 130 after Ctrl-C and 141 for a closed stdout. An
    error is printed as one line.
    """
    arguments = parser().parse_args(argv)
    try:
        # Imported here, because this module loads NumPy and the hub's client, which the help texts do not need.
        from models.cli import commands

        commands.COMMANDS[arguments.verb](arguments)
        command_line.flush()
    except Failed as error:
        return _fail(error, 1)
    except ValueError as error:  # `Refused`, or a ValueError for an unknown pooling. The user can correct both.
        return _fail(error, 2)
    except ModuleNotFoundError as error:
        return _fail(not_installed(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except OSError as error:
        return command_line.GONE if command_line.has_gone(error) else _fail(*error_line_and_status(error))
    return 0


def _fail(reason: object, code: int) -> int:
    print(f"isosphere: {reason}", file=sys.stderr)
    return code


def parser() -> Parser:
    top = Parser(
        prog="isosphere", description="Export encoders as bundles or adapters, and exchange them with the hub."
    )
    verbs = top.add_subparsers(dest="verb", required=True)
    export = verbs.add_parser("export", **about("export"))
    export.add_argument("source", help=f"encoder to export: {ENCODER}, or a bundle")
    export.add_argument("--out", type=Path, required=True, help="folder of the bundle")
    export.add_argument("--name", help="name of the model in the server (default: the name of the folder)")
    export.add_argument(
        "--pooling",
        help="pooling: cls, mean, max, first_last, …, or several joined by + (default: the source's pooling)",
    )
    export.add_argument(
        "--max-length", type=_length, help="maximum tokens of a text (default: the source's maximum length)"
    )
    export.add_argument(
        "--prompt",
        action="append",
        type=_prompt,
        default=[],
        metavar="NAME=TEXT",
        help="prompt that requests select by its name; searches use the prompts named query and document; may be "
        "repeated (default: the source's prompts)",
    )
    export.add_argument(
        "--exporter",
        choices=("torch", "optimum"),
        default="torch",
        help="exporter of the graph; optimum needs a separate environment, created by `make optimum` (default: torch)",
    )
    export.add_argument(
        "--fp16",
        action="store_true",
        help="also write a float16 graph with fused attention, which is the fastest on CUDA",
    )
    export.add_argument("--if-missing", action="store_true", help="do nothing if the folder already has a valid bundle")
    export.add_argument("--no-measure", action="store_true", help="do not measure the speed of this machine's engines")
    adapters = verbs.add_parser("adapter", **about("adapter"))
    summary = "approximate the difference of a tuned encoder to its base by a low-rank adapter, and report what is lost"
    extract = adapters.add_subparsers(dest="action", required=True, metavar="extract").add_parser(
        "extract", **described(summary, COMMANDS["adapter"].example)
    )
    extract.add_argument("source", help=f"tuned encoder: {ENCODER}, or a bundle")
    extract.add_argument("--base", default="minilm", help="encoder from which SOURCE was tuned (default: minilm)")
    extract.add_argument("--rank", type=int, required=True, help="rank of each linear layer's update, usually 4 to 32")
    extract.add_argument(
        "--dtype",
        choices=("float16", "float8_e4m3fn"),
        default="float16",
        help="number type of the factors; float8_e4m3fn stores twice the rank in the same bytes (default: float16)",
    )
    extract.add_argument(
        "--layers",
        type=_layers,
        help="layers of the base that the tuned encoder kept, counted from 0, as in 0,2,5 (default: all)",
    )
    extract.add_argument("--out", type=Path, required=True, help="folder of the adapter, which also names the adapter")
    extract.add_argument("--no-biases", action="store_true", help="do not change the biases of the base")
    extract.add_argument("--about", help="sentence about the adapter, for the model card")
    extract.add_argument(
        "--data", type=Path, help="folder of SentEval's data, to also compare both encoders on STS-B dev"
    )
    publish = verbs.add_parser("publish", **about("publish"))
    publish.add_argument("folder", type=Path, help="folder of a bundle or an adapter, or minilm+NAME")
    publish.add_argument("target", help=PLACE)
    publish.add_argument(
        "--private", action="store_true", help="create the repository as private, if it does not exist"
    )
    publish.add_argument("--revision", help="branch of the repository, which is created if it does not exist")
    publish.add_argument("--message", help="commit message")
    pull = verbs.add_parser("pull", **about("pull"))
    pull.add_argument("source", help=f"{PLACE}; a name on the hub may end in @revision")
    pull.add_argument("--out", type=Path, required=True, help="folder of the bundle")
    for verb in (publish, pull):
        verb.add_argument("--replace", action="store_true", help="replace a different bundle or adapter")
    inspect = verbs.add_parser("inspect", **about("inspect"))
    verify = verbs.add_parser("verify", **about("verify"))
    for verb in (inspect, verify):
        verb.add_argument("folder", type=Path, help="folder of a bundle or an adapter")
    return top


def _layers(given: str) -> list[int]:
    try:
        return [int(layer) for layer in given.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{given!r} is not a list of numbers such as 0,2,5") from None


def _length(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"{given!r} is not a whole number above 0")
    return int(given)


def _prompt(given: str) -> tuple[str, str]:
    name, equals, text = given.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{given!r} is not NAME=TEXT")
    return name, text


if __name__ == "__main__":
    sys.exit(main())
