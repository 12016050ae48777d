"""What runs a bundle's graph: the seam between an encoder and the library that multiplies its matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models.bundle import Bundle

Device = Literal["auto", "cpu", "cuda"]
Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class RuntimeUnavailable(RuntimeError):
    """The runtime can't run here, or not so; the message says why and what to change."""


def first_line(error: Exception) -> str:
    """Of what it says: runtimes say a lot. Its class where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@dataclass(frozen=True)
class Options:
    """What a runtime may use of the machine."""

    device: Device = "auto"
    threads: int | None = 1
    """None: as many as the runtime takes by itself."""


class Embedded(NamedTuple):
    """What a graph makes of N texts."""

    vectors: Floats
    """(N, D), unit length."""
    norms: Floats
    """(N,), the length of each pooled vector before normalisation."""


class Runtime(Protocol):
    """A bundle's graph, loaded; called by one thread at a time.

    Raises (when it is made):
        RuntimeUnavailable: it has not this precision here.
        BundleError: the bundle has no such graph.
    """

    name: ClassVar[str]
    precision: str
    device: str

    def __init__(self, bundle: Bundle, precision: str, options: Options) -> None: ...

    def run(self, ids: Ids, mask: Ids) -> Embedded:
        """One padded batch, `ids` and `mask` each (N, L), rows in the order given. The arrays are the caller's own."""

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
