"""`promotions.jsonl`: every decision as a line, and which bundles they have put in service one after another."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from models.disk import fsync, naming
from models.errors import Refused

Outcome = Literal["promoted", "refused", "rolled back"]


class PromotionError(Refused):
    """A promotion or rollback that can't even be tried; the message names what stands in the way."""


@dataclass(frozen=True)
class Ledger:
    """One JSON object a line, only ever added to."""

    file: Path

    def append(self, entry: Mapping[str, Any]) -> None:
        """On return the line survives power loss. Half a line, which a crash left, gives way to it.

        Raises:
            OSError: it can't be written; names the file.
        """
        line = json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n"
        with naming(self.file):
            new = not self.file.exists()
            with self.file.open("ab+") as stream:
                stream.seek(0)
                stream.truncate(stream.read().rfind(b"\n") + 1)
                stream.write(line.encode())
                stream.flush()
                os.fsync(stream.fileno())
            if new:
                fsync(self.file.parent)

    def entries(self) -> list[dict[str, Any]]:
        """Every whole line, oldest first.

        Raises:
            PromotionError: a line is not a JSON object with an outcome.
        """
        if not self.file.exists():
            return []
        with naming(self.file):
            lines = self.file.read_bytes().splitlines(keepends=True)
        return [self._entry(line, number) for number, line in enumerate(lines, start=1) if line.endswith(b"\n")]

    def served(self) -> list[str]:
        """The copies in service since each other, the present one last: a rollback goes to the one before it."""
        names: list[str] = []
        for entry in self.entries():
            copy = entry.get("copy")
            if entry["outcome"] == "promoted":
                before = (entry.get("incumbent") or {}).get("copy")
                if before and names[-1:] != [before]:
                    names.append(before)
                names.append(str(copy))
            elif entry["outcome"] == "rolled back":
                names = [*names[: names.index(copy)], copy] if copy in names else [*names, str(copy)]
        return names

    def best(self, metric: str, sample: str) -> float | None:
        """The highest score, by `metric` on `sample`, of what is served and what was before it; None if there is none.

        What a rollback took back does not count.
        """
        served = set(self.served())
        promoted = [each for each in self.entries() if each["outcome"] == "promoted" and each.get("copy") in served]
        measured = [check.get("numbers", {}) for entry in promoted for check in entry.get("checks", [])]
        same = [each for each in measured if (each.get("metric"), each.get("sample")) == (metric, sample)]
        scores = [each.get(whose) for each in same for whose in ("candidate", "incumbent")]
        return max((score for score in scores if score is not None), default=None)

    def copies(self) -> set[str]:
        """Every copy that a line names, whether it is still there or not."""
        named = [part.get("copy") for entry in self.entries() for part in (entry, entry.get("incumbent") or {})]
        return {name for name in named if name}

    def _entry(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise PromotionError(f"{self.file}:{number}: not JSON ({error})") from error
        if not isinstance(entry, dict) or "outcome" not in entry:
            raise PromotionError(f"{self.file}:{number}: not a decision: it has no outcome")
        return entry
