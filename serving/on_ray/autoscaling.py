"""Number of replicas by queued tokens. Ray Serve's controller imports this module, so it imports no server."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

QUEUED_TOKENS = "queued_tokens"
"""Metric that each replica reports: tokens admitted and not yet embedded."""
TARGET_TOKENS = 20_000
"""Queued tokens that one replica should have at most, on average: about a second of work on a few CPUs."""


def by_queued_tokens(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas that keeps each queue at `TARGET_TOKENS`, and no state.

    Ray Serve applies the bounds and the delays of its configuration to the result.
    """
    tokens = sum((context.aggregated_metrics or {}).get(QUEUED_TOKENS, {}).values())
    return max(1, math.ceil(tokens / TARGET_TOKENS)), {}
