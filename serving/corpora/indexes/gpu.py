"""Indexes of FAISS, copied to a CUDA device. They need faiss-gpu and a CUDA device."""

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
"""Maximum number of results per query that FAISS can return from a device."""
TEMPORARY, PINNED = 256 << 20, 64 << 20
"""Bytes that FAISS reserves per index, on the device and in pinned memory. FAISS's defaults are 1.5 GiB and 256 MiB. A
search that needs more memory requests it from the device."""
SPARE = 512 << 20
"""Bytes of device memory that a copy leaves free for `TEMPORARY`, cuBLAS and the encoder."""
DRIVER = "libcuda.so.1"

PROBE = """
import faiss, numpy
if not faiss.get_num_gpus():
    raise SystemExit("FAISS finds no CUDA device")
vectors = numpy.eye(8, dtype=numpy.float32)
index = faiss.IndexFlatIP(8)
index.add(vectors)
resources = faiss.StandardGpuResources()
resources.setTempMemory(1 << 20)  # the default of 1.5 GiB may be more than an encoder has left free
options = faiss.GpuClonerOptions()
options.use_cuvs = False
device = faiss.index_cpu_to_gpu(resources, 0, index, options)
if device.search(vectors, 1)[1].ravel().tolist() != list(range(8)):
    raise SystemExit("the search returned wrong neighbours")
"""
PATIENCE = 300
"""Maximum seconds of the first search. If the device is newer than FAISS, the first search compiles kernels."""


def trouble() -> str | None:
    """Return the reason why FAISS can't search on the first CUDA device, or None if FAISS can.

    A subprocess tries a search, because FAISS aborts its process if it has no kernels for the device, or if the driver
    fails.
    """
    if not hasattr(faiss, "StandardGpuResources"):
        return "FAISS found no CUDA device; searching on a GPU needs faiss-gpu in place of faiss-cpu"
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
    """A kind of index that consists of a CPU index and its copy on the first CUDA device.

    This kind may be used only if `trouble` returned None. The copy answers most searches. The CPU index, which stays
    memory-mapped, answers searches with a narrow filter or with more than `MOST_CANDIDATES` candidates, because the
    device does not support them. If the device fails, or has no room for the copy, the CPU index answers all searches.
    Only a build fails in this case.
    """

    def __init__(self, kind: Kind, number: int) -> None:
        """Create the GPU variant of the CPU kind `kind`.

        The copy of an index on the device takes `number` bytes per component of a vector.
        """
        self.name = f"gpu-{kind.name}"
        self.knob = kind.knob
        self.refined = kind.refined
        self.parameters, self.memory = kind.parameters, kind.memory
        self._kind = kind
        self._number = number

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Build the index on the CPU, and copy it to the device.

        The free memory of the device is checked before and after the build. The first check avoids a useless build,
        which may take an hour.

        Raises:
            BuildError: the device has no room for the copy.
        """
        self._check_room(vectors)
        index = _Pair(self._kind.build(vectors, parameters, pause))
        self._copy(index, vectors)
        return index

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        """Add the rows of `vectors` that the CPU index lacks, and delete the copy on the device.

        The returned index has no copy on the device. After the index is written, `read` makes a copy of the complete
        index. The old copy is deleted before, so that the device needs room for one copy only.
        """
        index.release()
        return _Pair(self._kind.complete(index.cpu, vectors))

    def write(self, index: faiss.Index, path: str) -> None:
        self._kind.write(index.cpu, path)

    def read(self, path: str, vectors: Floats) -> faiss.Index:
        """Read the CPU index, and copy it to the device.

        If the device has no room, the CPU answers searches until the next build.
        """
        index = _Pair(self._kind.read(path, vectors), serves=True)
        try:
            self._copy(index, vectors)
        except BuildError as error:
            self._give_up(index, error)
        return index

    def efforts(self, parameters: Parameters) -> Sequence[int]:
        """Return the efforts of the CPU kind up to `MOST_CANDIDATES`. An effort is a value of the parameter `knob`."""
        return [effort for effort in self._kind.efforts(parameters) if effort <= MOST_CANDIDATES]

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
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
        """Search the copy on the device. Return None if there is no copy, or if the device fails.

        If the device fails while a build measures the index, the error is raised instead, so that the build fails.
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
        log.warning("searches of %s use the CPU until another index is built: %s", self.name, on_one_line(error))

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
    """A CPU index, and its copy on the first CUDA device. `gpu` is None if there is no copy."""

    gpu: faiss.Index | None = None

    def __init__(self, cpu: faiss.Index, *, serves: bool = False) -> None:
        self.cpu = cpu
        self.serves = serves
        """True if the index answers searches of callers. False while a build measures the index."""
        self.fell_back = False
        """True if the device failed or had no room for the copy, so that the CPU answers all searches."""
        self.alone = threading.Lock()
        """Lock for searches, because two searches must not use the temporary memory of the device at the same time."""

    def copy(self) -> None:
        resources = faiss.StandardGpuResources()  # the copy keeps a reference to these resources
        resources.setTempMemory(TEMPORARY)
        resources.setPinnedMemory(PINNED)
        options = faiss.GpuClonerOptions()
        options.use_cuvs = False  # faiss-gpu-cuvs uses cuVS by default, which rejects SQ8
        self.gpu = faiss.index_cpu_to_gpu(resources, 0, self.cpu, options)

    def release(self) -> None:
        self.gpu = None


def _of_the_device(error: Exception) -> bool:
    """Return whether FAISS raised `error` because CUDA could not allocate device memory or pinned memory.

    FAISS throws no other device error. If a copy, a launch or cuBLAS fails, for example on a lost device, FAISS ends
    the process by `abort()`, which can't be caught. The server's supervisor then restarts the server.
    """
    return isinstance(error, MemoryError) or "cuda" in str(error).lower()


def _drawn(wanted: Candidates, count: int) -> int:
    """Return how many of `count` rows to request from the device, so that enough rows pass the filter.

    Devices don't support filters, so the filter is applied to the device's result. If too few rows pass, the CPU
    repeats the search. Without extra rows, one removed document could therefore send every search to the CPU.

    The number of rows is chosen in two steps. First, it is made so large that the expected number of passing rows
    exceeds `wanted.rows` by five standard deviations, if rows pass at random. Then 16 rows are added, because rows do
    not pass at random if the removed vectors are near duplicates of each other. With this number, less than one query
    in a thousand gets too few rows.
    """
    if wanted.bitmap is None:
        return wanted.rows
    share = max(1, int(np.bitwise_count(wanted.bitmap).sum())) / count
    return math.ceil((wanted.rows + 5 * math.sqrt(wanted.rows * (1 - share))) / share) + 16


def _passing(rows: NDArray[np.int64], bitmap: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return those row numbers of the (Q, C) `rows` whose bit in `bitmap` is set.

    For each query, these row numbers keep their order, and -1 fills the free places at the end.
    """
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
"""Kinds of indexes by name, in the order in which they are tried. The last kind is for vectors that do not fit in the
device memory as float32."""
