"""Health of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_FAILED = "loading failed, and the server's log says why"


@dataclass(frozen=True)
class Health:
    """State of the server, and the reason if it does not serve requests. A failing server still tries each request."""

    state: Literal["loading", "ready", "failing", "draining", "failed"]
    reason: str

    def __str__(self) -> str:
        """Return the public message. The reason of a failed load is left out, since it names paths and corpora."""
        return f"{self.state}: {_FAILED if self.state == 'failed' else self.reason}"
