"""Trials by name, each with its full length."""

from __future__ import annotations

from benchmarks.durability.bounds import Trial
from benchmarks.durability.concurrency import concurrency
from benchmarks.durability.corrupt import corrupt, corrupt_beside
from benchmarks.durability.disk import disk
from benchmarks.durability.kills import kills
from benchmarks.durability.model import model
from benchmarks.durability.power import power
from benchmarks.durability.recovery import recovery

TRIALS: dict[str, tuple[Trial, int]] = {
    "kills": (kills, 200),
    "power": (power, 100),
    "model": (model, 200_000),
    "corrupt": (corrupt, 1_000_000),
    "corrupt-beside": (corrupt_beside, 1_000_000),
    "disk": (disk, 10),
    "concurrency": (concurrency, 60),
    "recovery": (recovery, 100_000),
}
