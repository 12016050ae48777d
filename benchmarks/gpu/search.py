"""Vector search with FAISS on a GPU, compared with HNSW on the CPU.

The figures are build time, memory, and searches per second at the target recall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.parts import Report, Setting
from benchmarks.indexes import FRESH, TARGET, clustered, searched
from models import cpus
from models.runtimes.base import Floats
from serving.corpora.indexes import KINDS
from serving.corpora.indexes.building import QUERIES
from serving.corpora.indexes.gpu import GPU_KINDS, trouble
from serving.corpora.indexes.kind import BuildError, CancelledError, Candidates, Kind, Parameters, Pause
from serving.corpora.indexes.state import Approximate, Main, Tuning

DIM = 384
SIZES = {1_000_000: (QUERIES, FRESH), 10_000_000: (100, 200)}
"""Numbers of vectors, each with the number of queries that tune an index and the number that test it."""
TINY_DIM = 32
TINY = {2_000: (100, 100), 4_000: (50, 50)}
BLOCKS = 10
"""Number of threads that draw vectors, each from a mixture of its own, because one thread would take minutes for 10^7.
"""
HNSW = "hnsw"
BETWEEN = 20.0
"""Maximum seconds that a build may run between two checks of the remaining time."""
DEGREE = 64
"""Number of neighbours of each vector in the graph. 64 is FAISS's default."""
EFFORTS = tuple(range(32, 545, 32))
"""Values of CAGRA's `itopk_size`. cuVS rounds it up to a multiple of 32."""


def measure(setting: Setting, report: Report) -> None:
    """Measure all kinds of indexes on the smaller number of vectors, and the GPU indexes on the larger number."""
    threads, dim = cpus.available(), TINY_DIM if setting.tiny else DIM
    (some, queries), (many, few) = (TINY if setting.tiny else SIZES).items()
    known = {"faiss": faiss.__version__, "cagra": hasattr(faiss, "GpuIndexCagra")}
    report.keep("setting", {"dim": dim, "target": TARGET, "threads": threads, **known})
    kinds = of_device(setting)
    for count, asked, chosen in ((some, queries, [*kinds, KINDS[HNSW]]), (many, few, kinds[:2])):
        exact, held, fresh = drawn(count, dim, *asked)
        for kind in chosen:
            name = f"{kind.name} of {count}"
            with report.attempt(name):
                row = measured(kind, exact, held, fresh, setting)
                report.keep(name, row)
                if "fails" in row:
                    report.fail(f"{name}: {row['fails']}")


def of_device(setting: Setting) -> list[Kind]:
    """Return the device's kinds of indexes: flat, IVF and CAGRA.

    In a rehearsal on a CPU, return the CPU's flat and IVF indexes.

    Raises:
        RuntimeError: FAISS can't search on the device.
    """
    if setting.device == "cpu":
        return [KINDS["flat"], KINDS["ivf-flat"]]
    if reason := trouble():
        raise RuntimeError(reason)
    cagra = [Cagra()] if hasattr(faiss, "GpuIndexCagra") else []
    return [GPU_KINDS["gpu-flat"], GPU_KINDS["gpu-ivf-flat"], *cagra]


def drawn(count: int, dim: int, held: int, fresh: int) -> tuple[Main, Floats, Floats]:
    """Draw clustered unit vectors. Return an exact index of them, and two sets of queries from the same clusters.

    The `held` queries of the first set are for tuning. The `fresh` queries of the second set are for timing.
    """
    vectors, size, asked = np.empty((count, dim), np.float32), count // BLOCKS, (held + fresh) // BLOCKS

    def block(number: int) -> Floats:
        made = clustered(size + asked, dim, seed=number)
        vectors[number * size : (number + 1) * size] = made[:size]
        return made[size:]

    with ThreadPoolExecutor(BLOCKS) as pool:
        queries = np.concatenate(list(pool.map(block, range(BLOCKS))))
    queries = np.random.default_rng(0).permutation(queries)
    return Main(np.arange(1, count + 1), vectors, None, Tuning(TARGET)), queries[:held], queries[held:]


def measured(kind: Kind, exact: Main, held: Floats, fresh: Floats, setting: Setting) -> Mapping[str, Any]:
    """Build one kind of index and search it without filters. HNSW is searched on all threads, and then on one."""

    def pause() -> None:
        if setting.left < BETWEEN:
            raise CancelledError

    threads, parameters, before = cpus.available(), kind.parameters(*exact.vectors.shape), _free(setting)
    faiss.omp_set_num_threads(threads)
    begin = perf_counter()
    try:
        built = Approximate(kind, parameters, kind.build(exact.vectors, parameters, pause))
    except CancelledError:
        return {
            "left_out": f"the build was not finished after {perf_counter() - begin:.0f} s, when the part's time was up"
        }
    row = {
        "parameters": dict(parameters),
        "build_s": round(perf_counter() - begin, 1),
        "device_bytes": before - _free(setting),
        **searched(built, exact, held, fresh, shares=(1.0,), threads=threads),
    }
    if kind.name == HNSW:
        row["one_thread"] = searched(built, exact, held, fresh, shares=(1.0,))
    return row


def _free(setting: Setting) -> int:
    return torch.cuda.mem_get_info()[0] if setting.device == "cuda" else 0


class Cagra:
    """A CAGRA index, which only this benchmark uses. It is not stored, and the server does not offer it."""

    name = "gpu-cagra"
    knob: str | None = "itopk_size"
    refined = 1

    def __init__(self) -> None:
        self._resources = faiss.StandardGpuResources()

    def parameters(self, count: int, dim: int) -> Parameters:  # noqa: ARG002 - the same for any number
        return {"graph_degree": DEGREE, "intermediate_graph_degree": 2 * DEGREE}

    def memory(self, count: int, dim: int) -> int:
        """Return the bytes of the vectors and of both graphs. All of these are in the device's memory."""
        return count * (4 * dim + 4 * 3 * DEGREE)

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Build the graph by L2 distance. For unit vectors, L2 distance and inner product give the same ranking."""
        pause()
        config = faiss.GpuIndexCagraConfig()
        config.graph_degree = parameters["graph_degree"]
        config.intermediate_graph_degree = parameters["intermediate_graph_degree"]
        index = faiss.GpuIndexCagra(self._resources, vectors.shape[1], faiss.METRIC_L2, config)
        index.train(np.ascontiguousarray(vectors))
        return index

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:  # noqa: ARG002 - refused
        raise BuildError(f"further vectors can't be added to {self.name}")

    def write(self, index: faiss.Index, path: str) -> None:  # noqa: ARG002 - refused
        raise BuildError(f"{self.name} is not kept")

    def read(self, path: str, vectors: Floats) -> faiss.Index:  # noqa: ARG002 - refused
        raise BuildError(f"{self.name} is not kept")

    def efforts(self, parameters: Parameters) -> Sequence[int]:  # noqa: ARG002 - the same for any graph
        return EFFORTS

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """Return the rows that each query finds among all vectors, without filters."""
        assert wanted.bitmap is None, "CAGRA is measured without filters"
        parameters = faiss.SearchParametersCagra(itopk_size=max(wanted.effort, wanted.rows))
        _, rows = index.search(queries, wanted.rows, params=parameters)
        return rows  # type: ignore[no-any-return]
