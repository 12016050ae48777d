"""Computation of maps of corpora by a child process (`serving.corpora.tsne`), while the corpora answer searches."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.corpora.backend import Backend
from serving.corpora.snapshots import Progress
from serving.corpora.values import Blocks, Keys, Map
from serving.errors import ServiceError, TooLarge, Unhealthy, Unsupported
from serving.operations.child_process import lines, reaped, running
from serving.operations.threads import check_cancelled

MODULE = "serving.corpora.tsne"
MISSING = "a map by t-SNE needs the extra 'map', which is not installed on the server: pip install 'isosphere[map]'"


def check_installed() -> None:
    """Raise `Unsupported` if the extra for maps is not installed."""
    if find_spec("openTSNE") is None:
        raise Unsupported(MISSING)


def mapped(corpora: Backend, name: str, progress: Progress) -> tuple[Map, str]:
    """Compute a map of a corpus, and report the finished steps. This call blocks.

    Return the map, and the generation of the corpus for which the map was computed (see `Corpus.generation`).

    Raises:
        Stopped: the work was cancelled.
        TooLarge: the memory of the server is not enough.
        Unhealthy: the child process failed, or the layout did not converge.
    """
    given = corpora.unplaced(name)
    keys, places = computed(given.dim, given.blocks, progress)
    return Map(given.origin, keys, places), given.generation


def computed(dim: int, blocks: Blocks, progress: Progress) -> tuple[Keys, NDArray[np.float64]]:
    """Compute a map of N unit vectors with `dim` dimensions. Return their N keys and (N, 2) coordinates.

    The calling process never has all vectors in memory. The errors are those of `mapped`.
    """
    keys = [np.empty(0, np.int64)]
    with running(MODULE, str(dim)) as child:
        assert child.stdin is not None
        # The child process may end early, and its status then tells why.
        with suppress(BrokenPipeError), child.stdin as stdin:
            for some, vectors in blocks:
                check_cancelled()
                stdin.write(np.ascontiguousarray(vectors, np.float32).data)
                keys.append(some)
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
        raise Unhealthy("the layout of the map did not converge: compute the map again")
    return np.concatenate(keys), places


def _ended(status: int, last: dict[str, Any]) -> ServiceError:
    if status == -signal.SIGKILL:
        return TooLarge("the map needs more memory than the server has")
    return Unhealthy(f"the process that computes maps failed: {last.get('error', f'exit status {status}')}")
