"""What a server is to survive: floods, reloads, idle and slow callers, bulk work, SIGTERM, hours of work.

`python -m benchmarks.stress [NAME …] [--seconds S]` starts a server for each trial and prints a verdict: what was
asked for, what was measured, and whether it holds. Its exit status is the number of trials that failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.__main__ import surroundings
from benchmarks.client import ReplyError
from benchmarks.contestants import BUNDLE
from benchmarks.stress.server import started
from benchmarks.stress.trials import TRIALS, Bound, Texts

RESULTS = Path(__file__).parents[1] / "results" / "stress.json"


def main() -> int:
    """Run the trials named, or all; with all of them at full length the figures are kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stress", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TRIALS))
    parser.add_argument("--seconds", type=float, help="of each trial, instead of its full length")
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="default: %(default)s")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(TRIALS):
        parser.error(f"no trial {', '.join(sorted(unknown))}; there are {', '.join(TRIALS)}")
    texts, failed, figures = Texts.of(asked.bundle), 0, dict[str, list[dict[str, Any]]]()
    for name in asked.names or TRIALS:
        trial, seconds, options = TRIALS[name]
        try:
            with started(asked.bundle, options) as server:
                bounds = trial(server, texts, asked.seconds or seconds)
        except (OSError, ReplyError, RuntimeError) as error:  # the server is gone, or never came
            bounds = [Bound(f"servers lost ({error})", 1, 0)]
        print(f"{name}: {(trial.__doc__ or '').splitlines()[0]}", *bounds, sep="\n  ", flush=True)
        failed += any(not bound.holds for bound in bounds)
        figures[name] = [bound._asdict() | {"holds": bound.holds} for bound in bounds]
    if not asked.names and not asked.seconds:
        kept = {"command": "python -m benchmarks.stress", **surroundings(), "figures": figures}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
