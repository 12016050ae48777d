"""The durability trials: kills, power loss, corrupt files, full disks, concurrency, recovery, a random walk.

CI runs them in short, and `make nightly` runs longer ones. With TRIALS=full they have the full length, and
benchmarks/results/durability.json stores their figures: `TRIALS=full pytest -m nightly -k power FILE`.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.surroundings import surroundings
from tests.serving.durability.corrupt import corrupt, corrupt_beside
from tests.serving.durability.disk import disk
from tests.serving.durability.history import Trial
from tests.serving.durability.model import model
from tests.serving.durability.trials import concurrency, kills, power, recovery

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "durability.json"
TRIALS: dict[str, tuple[Trial, int, int, int]] = {
    "kills": (kills, 4, 12, 200),
    "power": (power, 4, 8, 100),
    "model": (model, 1_000, 10_000, 200_000),
    "corrupt": (corrupt, 20, 60, 1_000_000),
    "corrupt-beside": (corrupt_beside, 40, 120, 1_000_000),
    "disk": (disk, 1, 3, 10),
    "concurrency": (concurrency, 3, 5, 60),
    "recovery": (recovery, 500, 1_000, 100_000),
}
"""Each trial with its lengths in CI, in the nightly run and in full."""
FULL = os.environ.get("TRIALS") == "full"


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIALS)
def test_a_short_trial_holds(name: str, tmp_path: Path) -> None:
    trial, length, _, _ = TRIALS[name]
    holds(trial, tmp_path, length)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TRIALS)
def test_a_long_trial_holds(name: str, tmp_path: Path) -> None:
    trial, _, nightly, full = TRIALS[name]
    holds(trial, tmp_path, full if FULL else nightly, record=name if FULL else None)


def test_a_short_walk_agrees_with_a_dict(tmp_path: Path) -> None:
    holds(model, tmp_path, 30)


def holds(trial: Trial, folder: Path, length: int, *, record: str | None = None) -> None:
    """Run a trial, record its figures, and check its bounds. Only a recorded trial has bounds of time."""
    outcome = trial(folder, length)
    bounds = [bound for bound in outcome.bounds if record or not bound.what.startswith("seconds")]
    if record:
        figures = {
            "command": f"TRIALS=full pytest -m nightly -k {record} {Path(__file__).relative_to(RESULTS.parents[2])}",
            "date": datetime.now(UTC).date().isoformat(),
            **surroundings(),
            "trials": length,
            "holds": all(bound.holds for bound in bounds),
            "bounds": [bound._asdict() | {"holds": bound.holds} for bound in bounds],
            **outcome.details,
        }
        stored = json.loads(RESULTS.read_text(encoding="utf-8")) | {record: figures}
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    assert not [str(bound) for bound in bounds if not bound.holds], outcome.details
