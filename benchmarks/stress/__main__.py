"""Trials of a server: floods, reloads, idle and slow callers, bulk work, SIGTERM, costly neighbours, long runs.

`python -m benchmarks.stress [NAME …] [--seconds S]` starts a server for each trial and prints a verdict: the
requirements, the measurements, and whether they hold. The exit status is the number of failed trials.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.serving.client import ReplyError
from benchmarks.serving.contestants import BUNDLE
from benchmarks.stress.server import started
from benchmarks.stress.trial import Bound, Texts
from benchmarks.stress.trials import TRIALS
from benchmarks.surroundings import RESULTS, read, surroundings, write
from models.cli.command_line import Parser

FILE = RESULTS / "stress.json"


def main() -> int:
    """Run the named trials, or all trials. Only full trials of the default bundle replace their stored figures."""
    parser = Parser(prog="python -m benchmarks.stress", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TRIALS))
    parser.add_argument("--seconds", type=float, help="seconds of each trial (default: its full length)")
    parser.add_argument(
        "--kind", action="append", help="kind of expensive request in `neighbour`; may be repeated (default: all)"
    )
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="bundle to serve (default: %(default)s)")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(TRIALS):
        parser.error(f"no trial {', '.join(sorted(unknown))}; available: {', '.join(TRIALS)}")
    texts, failed = Texts.of(asked.bundle), 0
    about = surroundings()  # Read at the start, because each stored result modifies the checkout.
    for name in asked.names or TRIALS:
        trial, seconds, options, apart, keys = TRIALS[name]
        more = {"only": asked.kind} if asked.kind and name == "neighbour" else {}
        try:
            with started(asked.bundle, options, apart=apart, keys=keys) as server:
                bounds = trial(server, texts, asked.seconds or seconds, **more)
        except (OSError, ReplyError, RuntimeError) as error:  # The server has ended, or did not start.
            bounds = [Bound(f"servers that ended or did not start ({error})", 1, 0)]
        print(f"{name}: {(trial.__doc__ or '').splitlines()[0]}", *bounds, sep="\n  ", flush=True)
        failed += any(not bound.holds for bound in bounds)
        if not (asked.seconds or asked.kind or asked.bundle != BUNDLE):
            keep(name, bounds, about)
    return failed


def keep(name: str, bounds: Sequence[Bound], about: Mapping[str, Any], file: Path = FILE) -> None:
    """Store a trial's figures beside those of other trials, with its command and date. `about` names the machine."""
    kept = read(file)
    kept[name] = {
        "command": f"python -m benchmarks.stress {name}",
        "date": datetime.now(UTC).date().isoformat(),
        **about,
        "bounds": [bound._asdict() | {"holds": bound.holds} for bound in bounds],
    }
    write(file, {one: kept[one] for one in TRIALS if one in kept})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # The started server is ended, too.
    sys.exit(main())
