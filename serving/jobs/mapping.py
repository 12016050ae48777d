"""Maps of corpora, computed by a process of its own (`serving.mapping`) while the corpus serves."""

from __future__ import annotations

import json
import signal
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.snapshots import Progress
from serving.errors import ServiceError, TooLarge, Unhealthy, Unsupported
from serving.operations.child_process import lines, reaped, running

MODULE = "serving.mapping"
MISSING = "a map by t-SNE needs the extra 'map', which is not installed here: pip install 'isosphere[map]'"


def check_installed() -> None:
    """Raise `Unsupported` if the extra for maps is not installed."""
    if find_spec("openTSNE") is None:
        raise Unsupported(MISSING)


def computed(vectors: Floats, progress: Progress) -> NDArray[np.float64]:
    """Return the (N, 2) places of (N, D) unit vectors, and report the finished steps. Blocking.

    Raises:
        Stopped: the current work was cancelled.
        TooLarge, Unhealthy: the process failed.
    """
    with running(MODULE, str(len(vectors))) as child:
        assert child.stdin is not None
        try:
            with child.stdin as stdin:
                stdin.write(np.ascontiguousarray(vectors, np.float32).data)
        except BrokenPipeError:  # the process ended early, and its exit status says why
            pass
        last: dict[str, Any] = {}
        for line in lines(child):
            last = json.loads(line)
            if total := last.get("total"):
                progress.expect(total, total)
                progress.add(last["done"] - progress.done)
        if status := reaped(child):
            raise _ended(status, last)
        places = np.array(last["places"], np.float64).reshape(-1, 2)
    if not np.isfinite(places).all():
        raise Unhealthy("the layout of the map did not converge: compute it again")
    return places


def _ended(status: int, last: dict[str, Any]) -> ServiceError:
    if status == -signal.SIGKILL:
        return TooLarge("the map needs more memory than there is")
    return Unhealthy(f"the process that computes maps failed: {last.get('error', f'exit status {status}')}")
