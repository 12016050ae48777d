"""Autoscaling by queued tokens. Ray Serve's controller imports this module, so it must not import the server."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

QUEUED_TOKENS = "queued_tokens"
"""Name of the metric that each replica reports: the number of tokens that are admitted and not yet embedded."""
TARGET_TOKENS = 20_000
"""Target for the mean number of queued tokens per replica. It is about one second of work on a few CPUs."""


def by_queued_tokens(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas with which each has about `TARGET_TOKENS` queued tokens, and an empty state.

    Ray Serve then applies the bounds and delays of its configuration.
    """
    tokens = sum((context.aggregated_metrics or {}).get(QUEUED_TOKENS, {}).values())
    return max(1, math.ceil(tokens / TARGET_TOKENS)), {}
