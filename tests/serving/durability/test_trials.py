"""The trials of `python -m benchmarks.durability`, in short; at full length they are run by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.durability.trials import TRIALS

SHORT = {
    "kills": 12,
    "power": 8,
    "corrupt": 60,
    "corrupt-beside": 120,
    "disk": 1,
    "concurrency": 5,
    "model": 10_000,
    "recovery": 1_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIALS)
def test_it_holds(name: str, tmp_path: Path) -> None:
    trial, _ = TRIALS[name]
    outcome = trial(tmp_path, SHORT[name])
    broken = [str(bound) for bound in outcome.bounds if not bound.holds and not bound.what.startswith("seconds")]
    assert not broken, f"{broken} {outcome.details}"  # how long it takes is for the trial at full length


def test_a_short_walk_agrees_with_a_dict(tmp_path: Path) -> None:
    trial, _ = TRIALS["model"]
    assert trial(tmp_path, 30).holds
