"""FAISS on a CUDA device: the same indexes, copied there; only where faiss-gpu is installed and finds a device."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from serving.indexes.flat import Flat
from serving.indexes.ivf import Ivf
from serving.indexes.kind import BuildError, Candidates, Kind, Parameters, Pause
from serving.ports import Floats

MOST_CANDIDATES = 2_048
"""That FAISS returns from a device."""


PROBE = """
import faiss, numpy
vectors = numpy.eye(8, dtype=numpy.float32)
index = faiss.IndexFlatIP(8)
index.add(vectors)
device = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
if device.search(vectors, 1)[1].ravel().tolist() != list(range(8)):
    raise SystemExit("it finds what is not there")
"""
PATIENCE = 60
"""Seconds that the first search may take: kernels for a new device are compiled then."""


def devices() -> int:
    """CUDA devices that FAISS finds."""
    return int(faiss.get_num_gpus())


def trouble() -> str | None:
    """Why FAISS can't search on the first device; None: it can.

    Another process tries: FAISS ends the one that it is in where it has no kernels for a device.
    """
    if not devices():
        return "FAISS finds no CUDA device; it needs faiss-gpu in place of faiss-cpu"
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"FAISS has not answered from the CUDA device within {PATIENCE} seconds"
    if not tried.returncode:
        return None
    said = [line for line in tried.stderr.splitlines() if line.strip()] or [f"exit code {tried.returncode}"]
    return f"FAISS can't search on the CUDA device: {next((line for line in said if 'CUDA error' in line), said[-1])}"


class OnGpu:
    """A kind of the CPU whose index is copied to the first device; filters are applied to what comes back."""

    def __init__(self, kind: Kind) -> None:
        self.name = f"gpu-{kind.name}"
        self.knob = kind.knob
        self.refined = kind.refined
        self._kind = kind

    def parameters(self, count: int, dim: int) -> Parameters:
        """As on the CPU."""
        return self._kind.parameters(count, dim)

    def memory(self, count: int, dim: int) -> int:
        """Of the machine, while the copy is made."""
        return self._kind.memory(count, dim)

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """On the CPU."""
        self._check()
        return _Pair(self._kind.build(vectors, parameters, pause))

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        """On the CPU, and copied again."""
        return _Pair(self._kind.complete(index.cpu, vectors))

    def write(self, index: faiss.Index, path: str) -> None:
        """The CPU's."""
        self._kind.write(index.cpu, path)

    def read(self, path: str, vectors: Floats) -> faiss.Index:
        """The CPU's, and a copy of it on the device."""
        self._check()
        return _Pair(self._kind.read(path, vectors))

    def efforts(self, parameters: Parameters) -> Sequence[int]:
        """As on the CPU, up to what a device takes."""
        return [effort for effort in self._kind.efforts(parameters) if effort <= MOST_CANDIDATES]

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """See `Kind`. With a filter, and for more than a device returns, on the CPU."""
        if wanted.bitmap is not None or wanted.rows > MOST_CANDIDATES:
            return self._kind.search(index.cpu, queries, wanted)
        with index.alone:
            return self._kind.search(index.gpu, queries, wanted)

    def _check(self) -> None:
        if not devices():
            raise BuildError(f"{self.name} needs faiss-gpu and a CUDA device: FAISS finds none")


class _Pair:
    """An index and its copy on the first device."""

    def __init__(self, cpu: faiss.Index) -> None:
        self.cpu = cpu
        self.alone = threading.Lock()
        """A device's memory for a search is not made for two at once."""
        self._resources = faiss.StandardGpuResources()
        self.gpu = faiss.index_cpu_to_gpu(self._resources, 0, cpu)


NAMES = ("gpu-flat", "gpu-ivf-flat", "gpu-ivf-sq8")
"""In the order in which they are tried: those behind are for what does not fit into the device."""
GPU_KINDS: tuple[Kind, ...] = tuple(OnGpu(kind) for kind in (Flat(), Ivf("flat"), Ivf("sq8"))) if devices() else ()
