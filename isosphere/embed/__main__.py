"""The command line of `isosphere embed`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from models.bundle.disk import error_line_and_status
from models.cli.command_line import Parser
from models.errors import Failed, Refused, not_installed

if TYPE_CHECKING:
    from isosphere.embed.embedding import Done, Model, Options

ENDINGS = (".parquet", ".npy")
ENCODINGS = ("float", "int8", "uint8", "binary", "ubinary")
EPILOG = """\
If the command is killed, repeat it to continue where it stopped. A file NAME.parquet.json or NAME.npy.json records the
inputs, the options and the encoder.

example: isosphere embed notes.jsonl articles/ --text-column body --columns title,year --out vectors.parquet

exit status: 0 the file is complete; 1 the disk, engine or hub failed; 2 an input or option can't be used; 130 Ctrl-C"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Embed texts and return the exit status.

    If the status is not 0, a line on stderr has the reason.
    """
    given = parser().parse_args(arguments)
    try:
        _embed(given)
    except Failed as error:  # One cause is a hub that does not answer, another an engine that fails.
        return _fails(str(error), 1)
    except ModuleNotFoundError as error:
        return _fails(not_installed(error), 2)
    except OSError as error:
        return _fails(*error_line_and_status(error))
    except ValueError as error:  # `Refused`, or an option that the encoder does not support.
        return _fails(str(error), 2)
    except KeyboardInterrupt:
        return _fails("stopped; the same command continues", 130)
    return 0


def _embed(given: argparse.Namespace) -> None:
    from isosphere.embed.embedding import Model, Options

    model = Model(given.model, given.engine, given.precision, given.device, given.threads)
    options = Options(
        text_column=given.text_column,
        id_column=given.id_column,
        columns=given.columns,
        on_error=given.on_error,
        prompt_name=given.prompt_name,
        dimensions=given.dimensions,
        encoding=given.encoding,
    )
    if given.on == "ray":
        _embed_on_ray(given, model, options)
    else:
        _embed_here(given, model, options)


def _embed_here(given: argparse.Namespace, model: Model, options: Options) -> None:
    from isosphere.embed.embedding import embed

    if given.ray_address:
        raise Refused("--ray-address needs --on ray")
    if (out := Path(given.out)).suffix not in ENDINGS:
        raise Refused(f"--out: {given.out!r} must end in {' or '.join(ENDINGS)}")
    encoder = model.load()
    # Warnings of single parts are hidden, because the total is printed at the end.
    with _without_warnings("isosphere.encoder"):
        done = embed(encoder, given.files, out, options, force=given.force, stream=sys.stderr)
    _report(given.out, done, encoder.name, encoder.max_length, encoder.truncated)


def _embed_on_ray(given: argparse.Namespace, model: Model, options: Options) -> None:
    from isosphere.embed.on_ray.bulk import embed

    if given.out.endswith(ENDINGS):
        raise Refused(f"--out: {given.out!r} names a file, but --on ray writes a folder of Parquet files")
    made = embed(
        model, given.files, given.out, options, address=given.ray_address, force=given.force, stream=sys.stderr
    )
    _report(given.out, made.done, made.encoder, made.max_length, made.truncated)


def _report(out: str, done: Done, encoder: str, max_length: int, truncated: int) -> None:
    if done.skipped:
        _say(f"bad rows that were skipped: {done.skipped}; the first: {done.first_skipped}")
    if truncated:
        _say(f"texts that were truncated to {max_length} tokens: {truncated}")
    rows = "1 row" if done.rows == 1 else f"{done.rows} rows"
    _say(f"{out}: {rows} by {encoder}")


@contextmanager
def _without_warnings(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _say(line: str) -> None:
    print(f"isosphere embed: {line}", file=sys.stderr)


def _fails(message: str, status: int) -> int:
    _say(message)
    return status


def parser() -> Parser:
    """Return the parser of this command."""
    own = Parser(
        prog="isosphere embed",
        description="Write the vectors of texts to a file, in the order of the input.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument(
        "files",
        nargs="+",
        help="files, folders or patterns: text (one per line), .jsonl, .csv, .tsv, .parquet; also .gz and .xz",
    )
    own.add_argument(
        "--out",
        required=True,
        metavar="NAME.parquet|NAME.npy",
        help="the file to write; with --on ray a folder, or its URL",
    )
    own.add_argument("--model", default="default", help="encoder of this project, or a bundle (default: default)")
    table = own.add_argument_group("columns")
    table.add_argument("--text-column", help="column with the text (default: text or sentence)")
    table.add_argument("--id-column", help="column with the id (default: id if there is one, otherwise FILE:LINE)")
    table.add_argument(
        "--columns",
        type=_names,
        default=[],
        metavar="NAME,…",
        help="columns to copy to the output (Parquet only); text files have the column text",
    )
    table.add_argument(
        "--on-error",
        choices=("fail", "skip"),
        default="fail",
        help="fail stops at the first bad row, before anything is embedded; skip leaves bad rows out (default: fail)",
    )
    vectors = own.add_argument_group("vectors")
    vectors.add_argument("--prompt-name", help="name of the encoder's prompt to put before each text (default: none)")
    vectors.add_argument("--dimensions", type=int, help="number of leading dimensions to keep (default: all)")
    vectors.add_argument(
        "--encoding",
        choices=ENCODINGS,
        default="float",
        help="number type of the vectors, as in the HTTP API (default: float)",
    )
    run = own.add_argument_group("run")
    run.add_argument(
        "--force", action="store_true", help="replace the output of a command with other options or inputs"
    )
    run.add_argument("--engine", help="onnxruntime, openvino or tensorrt (default: the fastest, measured once)")
    run.add_argument("--precision", help="fp32, bf16, … (default: the fastest, measured once)")
    run.add_argument("--device", default="auto", help="cpu or cuda (default: cuda if available)")
    run.add_argument("--threads", type=int, help="number of threads, with --on ray of each actor (default: all CPUs)")
    run.add_argument(
        "--on", choices=("ray",), help="ray: embed on the machines of a Ray cluster; input and output may then be URLs"
    )
    run.add_argument(
        "--ray-address", help="address of the cluster (default: RAY_ADDRESS, or a new Ray on this machine)"
    )
    return own


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


if __name__ == "__main__":
    sys.exit(main())
