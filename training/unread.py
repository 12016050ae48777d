"""Steps with unread losses. Reading waits for the device, so many steps are read together."""

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
    """A step with its inputs and results."""

    step: int
    batch: Batch
    before: Moment
    """State from before the step, without weights. The step can be repeated while weights are unchanged."""
    values: Mapping[str, Tensor]


@dataclass(frozen=True)
class Read:
    """A step with its values as numbers."""

    taken: Taken
    values: dict[str, float]

    @property
    def diverged(self) -> bool:
        """Return whether a value is NaN or infinite."""
        return not all(map(math.isfinite, self.values.values()))


class Unread:
    """Steps whose losses have not been read."""

    def __init__(self) -> None:
        self._taken: list[Taken] = []
        self.restart()

    def restart(self) -> None:
        """Restart the clock, so that the time until now does not count for the next steps."""
        self._since = time.perf_counter()

    def append(self, taken: Taken) -> None:
        self._taken.append(taken)

    def read(self) -> tuple[list[Read], float]:
        """Return the steps since the last reading, in order, and their total seconds.

        One transfer reads all values.
        """
        taken, self._taken = self._taken, []
        rows = torch.stack([torch.stack([value.float() for value in each.values.values()]) for each in taken]).tolist()
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        return [
            Read(each, dict(zip(each.values, row, strict=True))) for each, row in zip(taken, rows, strict=True)
        ], seconds
