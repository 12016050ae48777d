"""What runs a bundle's graph: the seam between an encoder and the library that multiplies its matrices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models import cpus
from models.bundle import Bundle

Device = Literal["auto", "cpu", "cuda"]
Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
CPU_BATCH_TOKENS = 1024
"""Padded tokens of a batch on a CPU: more are no quicker, and take memory for each shape that may come (ADR 0012)."""
MOST_STREAMS = 8


class RuntimeUnavailable(RuntimeError):
    """The runtime can't run here, or not so; the message says why and what to change."""


def cache_folder() -> Path | None:
    """Where runtimes keep what is of this host alone; None for a user who has no home."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return root / "isosphere"


@dataclass(frozen=True)
class Options:
    """What a runtime may use of the machine."""

    device: Device = "auto"
    threads: int | None = 1
    """None: the CPU quota."""

    @property
    def cpu_threads(self) -> int:
        """Threads of a runtime on the CPU."""
        return self.threads or cpus.available()

    @property
    def cpu_streams(self) -> int:
        """Batches that these threads work on side by side, each on its own: what waits for no other is quicker."""
        return min(self.cpu_threads, MOST_STREAMS)


class Embedded(NamedTuple):
    """What a graph makes of N texts."""

    vectors: Floats
    """(N, D), unit length."""
    norms: Floats
    """(N,), the length of each pooled vector before normalisation."""


class Runtime(Protocol):
    """A bundle's graph, loaded; called by as many threads at a time as it has streams.

    Raises (when it is made):
        RuntimeUnavailable: it has not this precision here.
        BundleError: the bundle has no such graph.
    """

    name: ClassVar[str]
    precision: str
    device: str
    streams: int
    """Batches that it runs side by side."""
    batch_tokens: int
    """Padded tokens of a batch, beyond which it is no quicker."""
    length_step: int
    """Batches are padded to a multiple of so many tokens."""

    def __init__(self, bundle: Bundle, precision: str, options: Options) -> None: ...

    def run(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Embedded:
        """One padded batch, `ids` and `mask` each (N, L), rows in the order given. The arrays are the caller's own.

        `alone` says that no other runs beside it: all threads may work on this one.
        """

    @staticmethod
    def precisions(bundle: Bundle, options: Options) -> Sequence[str]:
        """Those in which it can run `bundle` on this machine.

        Raises:
            RuntimeUnavailable: it can't run here at all.
        """

    @staticmethod
    def facts() -> dict[str, Any]:
        """Its `version`, and what else decides how fast it is on this machine.

        Raises:
            RuntimeUnavailable: it is not installed, or broken.
        """
