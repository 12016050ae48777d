"""Interface of a runtime: a library that runs a bundle's graph."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models import cpus
from models.bundle.bundle import Bundle
from models.errors import Failed, Refused, first_line
from models.names import Device

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
CPU_BATCH_TOKENS = 1024
"""Maximum tokens of a batch on a CPU, including padding.

Larger batches are not faster, and they need memory for each possible shape (ADR 0012).
"""
MOST_STREAMS = 8


class RuntimeUnavailable(RuntimeError):
    """The runtime can't run on this machine or with these options.

    The message contains the reason and what to change.
    """


@contextmanager
def engine_errors(encoder: object) -> Iterator[None]:
    """Convert an engine's own error in the `with` block to a `Failed` that names the encoder.

    All errors except `Refused`, `Failed` and `RuntimeUnavailable` are converted, because the errors of engines have no
    common base class.
    """
    try:
        yield
    except (Refused, Failed, RuntimeUnavailable):
        raise
    except Exception as error:
        raise Failed(f"{encoder}: the engine failed: {first_line(error)}") from error


def cache_folder() -> Path | None:
    """Return the folder for caches of this host, or None if the user has no home directory."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return root / "isosphere"


@dataclass(frozen=True)
class Options:
    """Resources that a runtime may use."""

    device: Device = "auto"
    threads: int | None = 1
    """Number of CPU threads. None means all CPUs that the quota allows."""
    long_lived: bool = False
    """True if the process keeps the runtime for long, as a server does.

    A runtime with several streams on a CPU must prepare for batches that use all threads. A long-lived runtime prepares
    when it is loaded. Any other runtime prepares when the first such batch runs, which then takes a few tenths of a
    second longer. A long-lived runtime may also compile a graph in the background, which takes memory.
    """

    @property
    def cpu_threads(self) -> int:
        """Number of threads that a runtime uses on the CPU."""
        return self.threads or cpus.available()

    @property
    def cpu_streams(self) -> int:
        """Number of batches that run in parallel on the CPU.

        Many batches with one thread each have a higher throughput than few batches with several threads each.
        """
        return min(self.cpu_threads, MOST_STREAMS)


class Embedded(NamedTuple):
    """Output of a graph for N texts."""

    vectors: Floats
    """(N, D) unit vectors."""
    norms: Floats
    """(N,) lengths of the vectors before normalisation."""


class Runtime(Protocol):
    """A runtime with a bundle's graph. The constructor loads the graph in one precision.

    Up to `streams` threads may call the runtime at the same time.

    Raises:
        RuntimeUnavailable: the runtime or the precision is not available on this machine.
        BundleError: the bundle has no graph of the precision.
    """

    name: ClassVar[str]
    precision: str
    device: str
    streams: int
    """Number of batches that the runtime computes concurrently."""
    batch_tokens: int
    """Number of tokens in a batch, including padding, above which throughput does not increase."""
    length_step: int
    """Sequences are padded to a multiple of this number of tokens."""

    def __init__(self, bundle: Bundle, precision: str, options: Options) -> None: ...

    @property
    def token_dim(self) -> int | None:
        """Width H of the token vectors, or None if the graph has no output for token vectors."""

    def run_tokens(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Floats:
        """Return the vectors of all tokens (N, L, H) of a padded batch, not normalised.

        `token_dim` must not be None. The arguments are those of `run`.
        """

    def run(self, ids: Ids, mask: Ids, *, alone: bool = False) -> Embedded:
        """Run one padded batch, `ids` and `mask` each (N, L). Rows keep their order.

        The caller owns the returned arrays. With `alone`, this batch may use all threads. Callers may set `alone` if no
        other batch runs. On a CPU, callers may also set `alone` for one extra batch while `streams` other batches run.
        """

    @staticmethod
    def precisions(bundle: Bundle, options: Options) -> Sequence[str]:
        """Return the precisions in which the runtime can run `bundle` on this machine.

        Raises:
            RuntimeUnavailable: the runtime can't run on this machine at all.
        """

    @staticmethod
    def facts() -> dict[str, Any]:
        """Return the runtime's `version`, and facts about this machine that affect its speed.

        Raises:
            RuntimeUnavailable: the runtime is not installed, or is broken.
        """
