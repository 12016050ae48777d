"""The requirements of a trial, with measurements and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.stress.trial import Bound
from tests.serving.durability.history import KINDS, Verdict

__all__ = ["Bound", "Outcome", "Trial", "nothing_wrong"]


@dataclass
class Outcome:
    """The result of one trial."""

    bounds: Sequence[Bound]
    details: dict[str, Any] = field(default_factory=dict)
    """Further figures to store, as JSON."""

    @property
    def holds(self) -> bool:
        """Return whether all bounds hold."""
        return all(bound.holds for bound in self.bounds)


Trial = Callable[[Path, int], Outcome]
"""A function of an empty folder and a number of repetitions, seconds or operations. Each trial states its unit."""


def nothing_wrong(verdict: Verdict) -> list[Bound]:
    """Return a bound of 0 for each kind of error."""
    kinds = [*KINDS, *sorted(verdict.wrong.keys() - set(KINDS))]
    return [Bound(kind, verdict.wrong[kind], 0) for kind in kinds]
