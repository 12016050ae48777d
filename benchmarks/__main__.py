"""Command `python -m benchmarks [NAME …]`: run benchmarks, print the figures, and write them to benchmarks/results."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import encodings, training
from benchmarks.search import measure as search
from benchmarks.search import scifact
from benchmarks.serving import ingest, opening, smaller
from benchmarks.serving import measure as serving
from benchmarks.surroundings import RESULTS, surroundings, write
from models.cli.command_line import Parser

BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {
    "training": training.measure,
    "serving": serving.measure,
    "smaller": smaller.measure,
    "ingest": ingest.measure,
    "encodings": encodings.measure,
    "search": search.measure,
    "scifact": scifact.measure,
    "opening": opening.measure,
}
JUDGED = ("encodings", "scifact")
"""Benchmarks that need evaluation data."""


def main() -> None:
    """Run the named benchmarks, or all benchmarks."""
    parser = Parser(prog="python -m benchmarks", description=__doc__)
    default = f"default: all; {' and '.join(JUDGED)} only if {encodings.DATA} names the folder of the data"
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)} ({default})")
    whole = serving.Choice()
    part = parser.add_argument_group("options of `serving`; the results are printed but not stored")
    part.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="LOAD",
        help="loads to run, by name or prefix: singles, mixed_4, open, …",
    )
    part.add_argument(
        "--against", nargs="+", default=(), metavar="PEER", help="other servers to compare with: infinity_torch, …"
    )
    part.add_argument("--rounds", type=int, default=whole.rounds, help="number of rounds (default: %(default)s)")
    part.add_argument(
        "--seconds", type=float, default=whole.seconds, help="seconds of each turn (default: %(default)s)"
    )
    asked = parser.parse_args()
    try:
        choice = serving.Choice(tuple(asked.only), tuple(asked.against), asked.rounds, asked.seconds)
    except ValueError as error:
        parser.error(str(error))
    names = asked.names or [name for name in BENCHMARKS if name not in JUDGED or encodings.DATA in os.environ]
    if not choice.whole and names != ["serving"]:
        parser.error("--only, --against, --rounds and --seconds are for `python -m benchmarks serving`")
    if unknown := set(names) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; available: {', '.join(BENCHMARKS)}")
    if encodings.DATA not in os.environ and (without := [name for name in names if name in JUDGED]):
        parser.error(f"{', '.join(without)}: name the folder of the data in {encodings.DATA}")
    about = surroundings()  # Read at the start, because each stored result modifies the checkout.
    for name in names:
        print(f"{name}: measuring …", flush=True)
        measured = BENCHMARKS[name]() if choice.whole else serving.measure(choice)
        print(json.dumps(measured["figures"], indent=2), flush=True)
        if choice.whole:
            file = RESULTS / f"{name}.json"
            write(file, {"command": f"python -m benchmarks {name}", **about, **measured})
            print("kept in", file, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Started servers are ended, too.
    main()
