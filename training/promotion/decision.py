"""The decision about a candidate: a line of the ledger, and a part of the served report."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnxruntime

from models.bundle.bundle import Bundle
from training.promotion.checks import Check
from training.promotion.ledger import Outcome


def now() -> str:
    """Return the time in the ledger's format."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A promotion or refusal, with all its reasons."""

    candidate: dict[str, Any]
    incumbent: dict[str, Any] | None
    checks: Sequence[Check]
    force: bool
    copy: str | None = None
    """Name of the promoted copy."""
    time: str = field(default_factory=now)

    @property
    def failed(self) -> list[Check]:
        """Return the checks that failed."""
        return [check for check in self.checks if not check.passed]

    @property
    def outcome(self) -> Outcome:
        """Return "promoted" if every check passed or `--force` overrides the failed ones, else "refused"."""
        passes = not self.failed or (self.force and all(check.forcible for check in self.failed))
        return "promoted" if passes else "refused"

    def to_json(self) -> dict[str, Any]:
        """Return the line of the ledger."""
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
    """Describe a bundle for the ledger."""
    manifest = found.manifest if found else None
    return {
        "path": str(path),
        "name": manifest.name if manifest else None,
        "fingerprint": manifest.fingerprint if manifest else None,
        **facts,
    }


def host() -> dict[str, Any]:
    """Describe the machine on which speeds were measured."""
    return {
        "name": platform.node(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "onnxruntime": onnxruntime.__version__,
    }
