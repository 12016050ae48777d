"""FAISS indexes copied to a CUDA device. This needs faiss-gpu and a device that it finds."""

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
from models.runtimes.base import Floats
from serving.corpora.indexes.approximate import Flat, Ivf
from serving.corpora.indexes.kind import BuildError, Candidates, Kind, Parameters, Pause

log = logging.getLogger(__name__)

MOST_CANDIDATES = 2_048
"""Maximum results per query that FAISS returns from a device."""
TEMPORARY, PINNED = 256 << 20, 64 << 20
"""Bytes that FAISS reserves per index, on the device and in pinned memory. Its defaults are 1.5 GiB and 256 MiB. A
search that needs more requests it from the device."""
SPARE = 512 << 20
"""Bytes that a copy leaves free: `TEMPORARY`, cuBLAS, and what the encoder's arena may still allocate."""
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
"""Seconds that the first search may take. It compiles kernels, once, if the device is newer than FAISS."""


def trouble() -> str | None:
    """Return the reason why FAISS can't search on the first device, or None if it can.

    Another process tries it, because FAISS aborts if there are no kernels for a device or if its driver fails.
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
    """A kind of the CPU whose index is copied to the first device. `trouble` must have returned None.

    The CPU's index stays mapped. It answers what the device can't: narrow filters, and more than `MOST_CANDIDATES`. It
    answers everything once the device has failed.
    """

    def __init__(self, kind: Kind, number: int) -> None:
        """Take `number`, the bytes that the device stores per component of a vector."""
        self.name = f"gpu-{kind.name}"
        self.knob = kind.knob
        self.refined = kind.refined
        self._kind = kind
        self._number = number

    def parameters(self, count: int, dim: int) -> Parameters:
        return self._kind.parameters(count, dim)

    def memory(self, count: int, dim: int) -> int:
        """Return the bytes of main memory that are needed while the copy is made."""
        return self._kind.memory(count, dim)

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Build on the CPU and copy to the device.

        Room is checked before, as k-means may take an hour, and again afterwards.

        Raises:
            BuildError: the device has no room for the copy.
        """
        self._check_room(vectors)
        index = _Pair(self._kind.build(vectors, parameters, pause))
        self._copy(index, vectors)
        return index

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        """Extend the CPU's index. Only `read` copies it again, so the device never has two copies of one build."""
        index.release()
        return _Pair(self._kind.complete(index.cpu, vectors))

    def write(self, index: faiss.Index, path: str) -> None:
        self._kind.write(index.cpu, path)

    def read(self, path: str, vectors: Floats) -> faiss.Index:
        """Read the CPU's index and copy it.

        If the device has no room, the CPU's index serves until another is built.
        """
        index = _Pair(self._kind.read(path, vectors), serves=True)
        try:
            self._copy(index, vectors)
        except BuildError as error:
            self._give_up(index, error)
        return index

    def efforts(self, parameters: Parameters) -> Sequence[int]:
        """Return the efforts of the CPU's kind that a device supports."""
        return [effort for effort in self._kind.efforts(parameters) if effort <= MOST_CANDIDATES]

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """Search the device, or the CPU where the device can't."""
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
        """Search the copy; return None if it is gone.

        During a build's measurement, a failure is raised to the build.
        """
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
        index.fell_back = True
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
    """An index and its copy on the first device, as long as it exists."""

    gpu: faiss.Index | None = None

    def __init__(self, cpu: faiss.Index, *, serves: bool = False) -> None:
        self.cpu = cpu
        self.serves = serves
        """True if callers wait for its results, and not only a build, which can do without them."""
        self.fell_back = False
        """True if the device failed, so that the CPU serves instead."""
        self.alone = threading.Lock()
        """Lock, because a device's search memory does not support two searches at once."""

    def copy(self) -> None:
        resources = faiss.StandardGpuResources()  # the copy keeps a reference to them
        resources.setTempMemory(TEMPORARY)
        resources.setPinnedMemory(PINNED)
        options = faiss.GpuClonerOptions()
        options.use_cuvs = False  # faiss-gpu-cuvs uses cuVS by default, which rejects SQ8
        self.gpu = faiss.index_cpu_to_gpu(resources, 0, self.cpu, options)

    def release(self) -> None:
        """Free the device's memory."""
        self.gpu = None


def _of_the_device(error: Exception) -> bool:
    """Return whether FAISS raised `error` because CUDA gave no memory, on the device or pinned.

    FAISS throws no other device error. If a copy, a launch or cuBLAS fails, for example on a lost device, it ends the
    process by `abort()`, which can't be caught. The server's supervisor then restarts it.
    """
    return isinstance(error, MemoryError) or "cuda" in str(error).lower()


def _drawn(wanted: Candidates, count: int) -> int:
    """Return how many of `count` rows to request, so that enough pass the filter, which devices don't support.

    Without this, one removed document would send every search to the CPU. At random, too few pass for less than one
    query in a thousand (five standard deviations). The 16 allow for removed near duplicates.
    """
    if wanted.bitmap is None:
        return wanted.rows
    share = max(1, int(np.bitwise_count(wanted.bitmap).sum())) / count
    return math.ceil((wanted.rows + 5 * math.sqrt(wanted.rows * (1 - share))) / share) + 16


def _passing(rows: NDArray[np.int64], bitmap: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Reorder (Q, count) rows: those that pass `bitmap` first, in their order, then -1 for the others."""
    passes = (rows >= 0) & (bitmap[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(np.bool_)
    order = np.argsort(~passes, axis=1, kind="stable")
    return np.take_along_axis(np.where(passes, rows, -1), order, axis=1)


def free_memory() -> int | None:
    """Return the free bytes on the first device according to its driver, or None if unknown."""
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
"""Kinds by name, in the order in which they are tried. Later ones are for vectors that don't fit into the device."""
