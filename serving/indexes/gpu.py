"""FAISS on a CUDA device: the same indexes, copied there; only where faiss-gpu is installed and finds a device."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from serving.indexes.flat import Flat
from serving.indexes.ivf import Ivf
from serving.indexes.kind import Candidates, Kind, Parameters, Pause
from serving.ports import Floats

MOST_CANDIDATES = 2_048
"""That FAISS returns from a device."""


TEMPORARY, PINNED = 256 << 20, 64 << 20
"""Bytes that FAISS sets aside for each index, on the device and beside it: of its own accord 1.5 GiB and 256 MiB. For a
search that needs more it asks the device then."""

PROBE = """
import faiss, numpy
if not faiss.get_num_gpus():
    raise SystemExit("it finds none")
vectors = numpy.eye(8, dtype=numpy.float32)
index = faiss.IndexFlatIP(8)
index.add(vectors)
device = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
if device.search(vectors, 1)[1].ravel().tolist() != list(range(8)):
    raise SystemExit("it finds what is not there")
"""
PATIENCE = 300
"""Seconds that the first search may take: kernels for a device that is newer than FAISS are compiled then, once."""


def trouble() -> str | None:
    """Why FAISS can't search on the first device; None: it can.

    Another process tries, and asks for the device at all: FAISS ends the one that it is in where there are no kernels
    for a device, or where its driver fails.
    """
    if not hasattr(faiss, "StandardGpuResources"):
        return "FAISS knows no CUDA device here; it needs faiss-gpu in place of faiss-cpu"
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
    """A kind of the CPU whose index is copied to the first device, which has no `trouble`; filters are for the CPU."""

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
        """On the CPU, and copied."""
        return _Pair(self._kind.build(vectors, parameters, pause))

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        """On the CPU, and copied again."""
        return _Pair(self._kind.complete(index.cpu, vectors))

    def write(self, index: faiss.Index, path: str) -> None:
        """The CPU's."""
        self._kind.write(index.cpu, path)

    def read(self, path: str, vectors: Floats) -> faiss.Index:
        """The CPU's, and a copy of it on the device."""
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


class _Pair:
    """An index and its copy on the first device."""

    def __init__(self, cpu: faiss.Index) -> None:
        self.cpu = cpu
        self.alone = threading.Lock()
        """A device's memory for a search is not made for two at once."""
        self._resources = faiss.StandardGpuResources()
        self._resources.setTempMemory(TEMPORARY)
        self._resources.setPinnedMemory(PINNED)
        self.gpu = faiss.index_cpu_to_gpu(self._resources, 0, cpu)


GPU_KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (OnGpu(Flat()), OnGpu(Ivf("flat")), OnGpu(Ivf("sq8")))}
"""By name, in the order in which they are tried: those behind are for what does not fit into the device."""
