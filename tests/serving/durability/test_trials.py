"""The trials of `python -m tests.serving.durability`, in short; at full length they are run by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving.durability.trials import TRIALS

LENGTHS = {
    "kills": (4, 12),
    "power": (4, 8),
    "corrupt": (20, 60),
    "corrupt-beside": (40, 120),
    "disk": (1,),
    "concurrency": (3, 5),
    "model": (1_000, 10_000),
    "recovery": (500, 1_000),
}
"""What CI runs of each trial, and what the nightly run does."""


@pytest.mark.parametrize(
    ("name", "length"),
    [
        pytest.param(name, length, marks=mark)
        for name, lengths in LENGTHS.items()
        for length, mark in zip(lengths, (pytest.mark.slow, pytest.mark.nightly), strict=False)
    ],
)
def test_it_holds(name: str, length: int, tmp_path: Path) -> None:
    trial, _ = TRIALS[name]
    outcome = trial(tmp_path, length)
    broken = [str(bound) for bound in outcome.bounds if not bound.holds and not bound.what.startswith("seconds")]
    assert not broken, f"{broken} {outcome.details}"  # how long it takes is for the trial at full length


def test_every_trial_is_run() -> None:
    assert LENGTHS.keys() == TRIALS.keys()


def test_a_short_walk_agrees_with_a_dict(tmp_path: Path) -> None:
    trial, _ = TRIALS["model"]
    assert trial(tmp_path, 30).holds
