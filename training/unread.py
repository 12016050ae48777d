"""Steps whose losses have not been looked at: reading them waits for the device, so it is done for many at once."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from training.checkpoint import Moment
from training.corpus.batches import Batch


@dataclass(frozen=True)
class Taken:
    """A step as it was taken, and what it gave."""

    step: int
    batch: Batch
    before: Moment
    """What only this step began with: enough to take it again, as long as the weights are the same."""
    values: Mapping[str, Tensor]


@dataclass(frozen=True)
class Read:
    """A step as it turned out."""

    taken: Taken
    values: dict[str, float]

    @property
    def diverged(self) -> bool:
        """Whether a value is NaN or infinite."""
        return not all(map(math.isfinite, self.values.values()))


class Unread:
    """Collects steps; `read` empties it."""

    def __init__(self) -> None:
        self._taken: list[Taken] = []
        self.restart()

    def restart(self) -> None:
        """What was done until now is no part of the next steps' time."""
        self._since = time.perf_counter()

    def append(self, taken: Taken) -> None:
        """One step more."""
        self._taken.append(taken)

    def read(self) -> tuple[list[Read], float]:
        """The steps since the last reading, in order, and the seconds they took together. One transfer for all."""
        taken, self._taken = self._taken, []
        rows = torch.stack([torch.stack([value.float() for value in each.values.values()]) for each in taken]).tolist()
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        return [
            Read(each, dict(zip(each.values, row, strict=True))) for each, row in zip(taken, rows, strict=True)
        ], seconds
