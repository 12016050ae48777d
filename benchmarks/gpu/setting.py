"""The settings of a part: device, size, data and time."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The options of the command, and the end of the part's time."""

    device: Literal["cuda", "cpu"]
    tiny: bool
    """True for a rehearsal, which runs the same code on sizes that measure nothing."""
    corpus: tuple[str, ...]
    """Files with a sentence per line. Empty means CPython's documentation."""
    data: str | None
    """Folder in SentEval's layout."""
    to: str
    """Folder of the results."""
    command: str
    commit: str | None
    """Commit of a checkout without git."""
    ends: float
    """End of the part's time by `time.monotonic`, which all processes of a machine share."""

    @property
    def left(self) -> float:
        """Return the seconds until the part's time is up."""
        return self.ends - time.monotonic()

    def file(self, part: str) -> Path:
        """Return the path of a part's results."""
        return Path(self.to) / f"{part}.json"

    def to_json(self) -> str:
        """Write the setting for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a setting that `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**values | {"corpus": tuple(values["corpus"])})
