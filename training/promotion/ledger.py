"""The ledger `promotions.jsonl`, which has one line for each decision and shows the order of the served bundles."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from models.bundle.disk import fsync, naming
from models.errors import Refused

Outcome = Literal["promoted", "refused", "rolled back"]


class PromotionError(Refused):
    """A promotion or rollback can't be attempted. The message contains the reason."""


@dataclass(frozen=True)
class Ledger:
    """An append-only file with one JSON object per line."""

    file: Path

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append a line and flush it to disk, so that it survives power loss.

        An incomplete last line, which a crash can leave, is replaced.

        Raises:
            OSError: the line can't be written; the message names the file.
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
        """Return every line as a dictionary, oldest first, without an incomplete last line that a crash has left.

        Raises:
            PromotionError: a line is not a JSON object with an outcome.
        """
        if not self.file.exists():
            return []
        with naming(self.file):
            lines = self.file.read_bytes().splitlines(keepends=True)
        return [self._entry(line, number) for number, line in enumerate(lines, start=1) if line.endswith(b"\n")]

    def served(self) -> list[str]:
        """Return the names of the served copies, from the oldest to the current copy.

        A rollback serves the copy before the current copy. Copies that a rollback replaced are left out.
        """
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
        """Return the highest score of the current and earlier served bundles, or None if no such score is recorded.

        Only scores by `metric` on the test data with the hash `sample` are compared. Bundles that a rollback replaced
        do not count.
        """
        served = set(self.served())
        promoted = [each for each in self.entries() if each["outcome"] == "promoted" and each.get("copy") in served]
        measured = [check.get("numbers", {}) for entry in promoted for check in entry.get("checks", [])]
        same = [each for each in measured if (each.get("metric"), each.get("sample")) == (metric, sample)]
        scores = [each.get(whose) for each in same for whose in ("candidate", "incumbent")]
        return max((score for score in scores if score is not None), default=None)

    def copies(self) -> set[str]:
        """Return the names of all copies of bundles that the ledger mentions, including deleted copies."""
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
