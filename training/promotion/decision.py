"""What was decided about a candidate, and why: a line of the ledger, and a part of the report that is served."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnxruntime

from models.bundle import Bundle
from training.promotion.checks import Check
from training.promotion.ledger import Outcome


def now() -> str:
    """The time, as the ledger writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Promoted or refused, with everything that it rests on."""

    candidate: dict[str, Any]
    incumbent: dict[str, Any] | None
    checks: Sequence[Check]
    force: bool
    copy: str | None = None
    """The name of the promoted copy."""
    time: str = field(default_factory=now)

    @property
    def failed(self) -> list[Check]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    @property
    def outcome(self) -> Outcome:
        """Promoted if every check passed, or `--force` passes over those that did not."""
        passes = not self.failed or (self.force and all(check.forcible for check in self.failed))
        return "promoted" if passes else "refused"

    def to_json(self) -> dict[str, Any]:
        """The line of the ledger."""
        difference = next(
            (check.numbers.get("difference") for check in self.checks if "difference" in check.numbers), None
        )
        return {
            "time": self.time,
            "outcome": self.outcome,
            "candidate": self.candidate,
            "incumbent": self.incumbent,
            "winner": None if not difference else "candidate" if difference > 0 else "incumbent",
            "by": None if difference is None else abs(difference),
            "checks": [check.to_json() for check in self.checks],
            "failed": [check.name for check in self.failed],
            "forced": self.outcome == "promoted" and bool(self.failed),
            "copy": self.copy,
            "host": host(),
        }


def described(path: Path, found: Bundle | None, **facts: Any) -> dict[str, Any]:
    """A bundle as the ledger names it."""
    manifest = found.manifest if found else None
    return {
        "path": str(path),
        "name": manifest.name if manifest else None,
        "fingerprint": manifest.fingerprint if manifest else None,
        **facts,
    }


def host() -> dict[str, Any]:
    """The machine that speeds were measured on."""
    return {
        "name": platform.node(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "onnxruntime": onnxruntime.__version__,
    }
