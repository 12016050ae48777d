"""Durability trials of a corpus: kills, power loss, corrupt files, full disks, concurrency, a random walk.

`python -m tests.serving.durability [NAME …] [--trials N]` prints a verdict for each: the requirement, the result, and
whether it holds. The exit status is the number of failed trials. Trials of full length store their figures.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.surroundings import surroundings
from models.command_line import Parser
from tests.serving.durability.trials import TRIALS

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "durability.json"


def main() -> int:
    """Run the named trials, or all."""
    parser = Parser(prog="python -m tests.serving.durability", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TRIALS))
    parser.add_argument(
        "--trials", type=int, metavar="N", help="number of trials, seconds or operations (default: the full length)"
    )
    parser.add_argument("--folder", type=Path, help="folder for the data (default: the system's temporary folder)")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(TRIALS):
        parser.error(f"no trial {', '.join(sorted(unknown))}; there are {', '.join(TRIALS)}")
    failed = 0
    for name in asked.names or TRIALS:
        trial, full = TRIALS[name]
        print(f"{name}: {(trial.__doc__ or '').splitlines()[0]}", flush=True)
        with TemporaryDirectory(dir=asked.folder, prefix=f"{name}-") as folder:
            outcome = trial(Path(folder), asked.trials or full)
        print(*outcome.bounds, json.dumps(outcome.details, indent=1), sep="\n  ", flush=True)
        failed += not outcome.holds
        if asked.trials is None:
            bounds = [bound._asdict() | {"holds": bound.holds} for bound in outcome.bounds]
            _keep(name, {"trials": full, "holds": outcome.holds, "bounds": bounds, **outcome.details})
    return failed


def _keep(name: str, figures: dict[str, Any]) -> None:
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    run = {"command": f"python -m tests.serving.durability {name}", "date": datetime.now(UTC).date().isoformat()}
    kept[name] = {**run, **surroundings(), **figures}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
