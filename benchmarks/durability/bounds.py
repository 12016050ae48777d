"""What a trial was asked for, what it measured, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.durability.history import KINDS, Verdict
from benchmarks.stress.trial import Bound

__all__ = ["Bound", "Outcome", "Trial", "nothing_wrong"]


@dataclass
class Outcome:
    """Of one trial."""

    bounds: Sequence[Bound]
    details: dict[str, Any] = field(default_factory=dict)
    """What else is worth keeping, as JSON."""

    @property
    def holds(self) -> bool:
        """All of them."""
        return all(bound.holds for bound in self.bounds)


Trial = Callable[[Path, int], Outcome]
"""Works in an empty folder; the number is how often, or how long, or how much: each says what its unit is."""


def nothing_wrong(verdict: Verdict) -> list[Bound]:
    """A bound a kind of what could have been found, 0 each."""
    kinds = [*KINDS, *sorted(verdict.wrong.keys() - set(KINDS))]
    return [Bound(kind, verdict.wrong[kind], 0) for kind in kinds]
