"""How a server fares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Health:
    """Whether requests are served, and if not, why. One that is failing still tries each request."""

    state: Literal["loading", "ready", "failing", "draining", "failed"]
    reason: str
