"""Autoscaling by queued tokens.

Ray Serve's controller imports this module, so the module must not import the server.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

QUEUED_TOKENS = "queued_tokens"
"""Name of the metric that each replica reports: the number of its admitted tokens that are not embedded yet."""
TARGET_TOKENS = 20_000
"""Target for the mean number of queued tokens per replica. A few CPUs embed this many tokens in about one second."""


def by_queued_tokens(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas to run, and a state for the next call, which is always empty.

    The number is the smallest with a mean of at most `TARGET_TOKENS` queued tokens per replica. Ray Serve applies the
    limits and delays of its configuration to it.
    """
    tokens = sum((context.aggregated_metrics or {}).get(QUEUED_TOKENS, {}).values())
    return max(1, math.ceil(tokens / TARGET_TOKENS)), {}
