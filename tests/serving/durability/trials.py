"""Trials by name, each with its full length."""

from __future__ import annotations

from tests.serving.durability.bounds import Trial
from tests.serving.durability.concurrency import concurrency
from tests.serving.durability.corrupt import corrupt, corrupt_beside
from tests.serving.durability.disk import disk
from tests.serving.durability.kills import kills
from tests.serving.durability.model import model
from tests.serving.durability.power import power
from tests.serving.durability.recovery import recovery

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
