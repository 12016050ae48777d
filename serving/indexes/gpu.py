"""FAISS on a CUDA device: the same indexes, copied there; only where faiss-gpu is installed and finds a device."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from ctypes import CDLL, byref, c_int, c_size_t, c_void_p

import faiss
import numpy as np
from numpy.typing import NDArray

from models.errors import on_one_line
from serving.indexes.flat import Flat
from serving.indexes.ivf import Ivf
from serving.indexes.kind import BuildError, Candidates, Kind, Parameters, Pause
from serving.ports import Floats

log = logging.getLogger(__name__)

MOST_CANDIDATES = 2_048
"""FAISS returns no more from a device."""
TEMPORARY, PINNED = 256 << 20, 64 << 20
"""Bytes that FAISS sets aside for each index, on the device and beside it: of its own accord 1.5 GiB and 256 MiB. For a
search that needs more it asks the device then."""
SPARE = 512 << 20
"""Bytes that a copy leaves free: `TEMPORARY`, cuBLAS, and what the encoder's arena may still ask for."""
DRIVER = "libcuda.so.1"

PROBE = """
import faiss, numpy
if not faiss.get_num_gpus():
    raise SystemExit("it finds none")
vectors = numpy.eye(8, dtype=numpy.float32)
index = faiss.IndexFlatIP(8)
index.add(vectors)
resources = faiss.StandardGpuResources()
resources.setTempMemory(1 << 20)  # of its own accord it takes 1.5 GiB, beside an encoder that may have left less
options = faiss.GpuClonerOptions()
options.use_cuvs = False
device = faiss.index_cpu_to_gpu(resources, 0, index, options)
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
    """A kind of the CPU whose index is copied to the first device, which has no `trouble`.

    The CPU's index stays, mapped: it answers what a device does not (narrow filters, more than `MOST_CANDIDATES`), and
    everything once the device has failed.
    """

    def __init__(self, kind: Kind, number: int) -> None:
        """`number` is how many bytes the device keeps for each number of a vector."""
        self.name = f"gpu-{kind.name}"
        self.knob = kind.knob
        self.refined = kind.refined
        self._kind = kind
        self._number = number

    def parameters(self, count: int, dim: int) -> Parameters:
        """As on the CPU."""
        return self._kind.parameters(count, dim)

    def memory(self, count: int, dim: int) -> int:
        """Of the machine, while the copy is made."""
        return self._kind.memory(count, dim)

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Build on the CPU, and copy.

        Raises:
            BuildError: the device has no room for the copy. It is asked before an hour of k-means, and again after it.
        """
        self._check_room(vectors)
        index = _Pair(self._kind.build(vectors, parameters, pause))
        self._copy(index, vectors)
        return index

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        """Extend the CPU's index. Only `read` copies it again, so that the device never holds two copies of a build."""
        index.release()
        return _Pair(self._kind.complete(index.cpu, vectors))

    def write(self, index: faiss.Index, path: str) -> None:
        """The CPU's."""
        self._kind.write(index.cpu, path)

    def read(self, path: str, vectors: Floats) -> faiss.Index:
        """Read the CPU's, and copy it. Where the device has no room, the CPU's serves until another is built."""
        index = _Pair(self._kind.read(path, vectors), serves=True)
        try:
            self._copy(index, vectors)
        except BuildError as error:
            self._give_up(index, error)
        return index

    def efforts(self, parameters: Parameters) -> Sequence[int]:
        """As on the CPU, up to what a device takes."""
        return [effort for effort in self._kind.efforts(parameters) if effort <= MOST_CANDIDATES]

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """See `Kind`. The CPU searches what the device can't."""
        if (rows := _drawn(wanted, index.cpu.ntotal)) > MOST_CANDIDATES:
            return self._kind.search(index.cpu, queries, wanted)
        found = self._on_device(index, queries, Candidates(rows, wanted.effort, None))
        if found is None:
            return self._kind.search(index.cpu, queries, wanted)
        if wanted.bitmap is None:
            return found
        found = _passing(found, wanted.bitmap)[:, : wanted.rows]
        if (short := found[:, -1] < 0).any():
            found[short] = self._kind.search(index.cpu, queries[short], wanted)
        return found

    def _on_device(self, index: _Pair, queries: Floats, wanted: Candidates) -> NDArray[np.int64] | None:
        """Search the copy; None if there is none any more. While a build measures it, its failure is the build's."""
        with index.alone:
            if index.gpu is None:
                return None
            try:
                return self._kind.search(index.gpu, queries, wanted)
            except (RuntimeError, MemoryError) as error:
                if not (index.serves and _of_the_device(error)):
                    raise
                self._give_up(index, error)
                return None

    def _give_up(self, index: _Pair, error: Exception) -> None:
        index.release()
        index.fallen = True
        log.warning("%s is searched on the CPU until another index is built: %s", self.name, on_one_line(error))

    def _copy(self, index: _Pair, vectors: Floats) -> None:
        self._check_room(vectors)
        try:
            index.copy()
        except (RuntimeError, MemoryError) as error:
            if not _of_the_device(error):
                raise
            raise BuildError(f"{self.name} can't be copied to the CUDA device: {on_one_line(error)}") from error

    def _check_room(self, vectors: Floats) -> None:
        count, dim = vectors.shape
        needed, free = count * (self._number * dim + 8) + SPARE, free_memory()
        if free is not None and needed > free:
            raise BuildError(
                f"{self.name} takes {needed >> 20} MiB of the CUDA device, which has {free >> 20} MiB left"
            )


class _Pair:
    """An index and its copy on the first device, as long as there is one."""

    gpu: faiss.Index | None = None

    def __init__(self, cpu: faiss.Index, *, serves: bool = False) -> None:
        self.cpu = cpu
        self.serves = serves
        """Whether callers wait for what it finds, and not a build that can do without it."""
        self.fallen = False
        """Whether the device failed, so that the CPU serves in its place."""
        self.alone = threading.Lock()
        """A device's memory for a search is not made for two at once."""

    def copy(self) -> None:
        resources = faiss.StandardGpuResources()  # the copy keeps them
        resources.setTempMemory(TEMPORARY)
        resources.setPinnedMemory(PINNED)
        options = faiss.GpuClonerOptions()
        options.use_cuvs = False  # what faiss-gpu-cuvs takes of its own accord, and what then refuses SQ8
        self.gpu = faiss.index_cpu_to_gpu(resources, 0, self.cpu, options)

    def release(self) -> None:
        """Give the device its memory back."""
        self.gpu = None


def _of_the_device(error: Exception) -> bool:
    """Whether FAISS says so of an exception: memory that CUDA does not give, on the device or pinned beside it.

    It throws no other error of a device. A copy, a launch or cuBLAS that fails (a device that is lost) ends the
    process by `abort()`, which nothing here can catch: whoever supervises the server starts it again.
    """
    return isinstance(error, MemoryError) or "cuda" in str(error).lower()


def _drawn(wanted: Candidates, count: int) -> int:
    """How many of `count` rows to ask a device for, which knows no filter, so that enough of them pass it.

    Without that, one removed document would send every search to the CPU. At random, too few pass for less than one
    query in a thousand (five standard deviations of those that don't pass); the 16 are for removed near duplicates.
    """
    if wanted.bitmap is None:
        return wanted.rows
    share = max(1, int(np.bitwise_count(wanted.bitmap).sum())) / count
    return math.ceil((wanted.rows + 5 * math.sqrt(wanted.rows * (1 - share))) / share) + 16


def _passing(rows: NDArray[np.int64], bitmap: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(Q, count) rows, those that `bitmap` lets pass first, in their order; -1 for the others."""
    passes = (rows >= 0) & (bitmap[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(np.bool_)
    order = np.argsort(~passes, axis=1, kind="stable")
    return np.take_along_axis(np.where(passes, rows, -1), order, axis=1)


def free_memory() -> int | None:
    """Bytes that the first device has left, as its driver says; None where it says nothing."""
    try:
        driver = CDLL(DRIVER)
    except OSError:
        return None
    device, context, free, total = c_int(), c_void_p(), c_size_t(), c_size_t()
    driver.cuInit(0)
    driver.cuDeviceGet(byref(device), 0)
    if driver.cuDevicePrimaryCtxRetain(byref(context), device):
        return None
    driver.cuCtxPushCurrent_v2(context)
    failed = driver.cuMemGetInfo_v2(byref(free), byref(total))
    driver.cuCtxPopCurrent_v2(byref(context))
    driver.cuDevicePrimaryCtxRelease_v2(device)
    return None if failed else free.value


GPU_KINDS: Mapping[str, Kind] = {
    kind.name: kind for kind in (OnGpu(Flat(), 4), OnGpu(Ivf("flat"), 4), OnGpu(Ivf("sq8"), 1))
}
"""By name, in the order in which they are tried: those behind are for what does not fit into the device."""
