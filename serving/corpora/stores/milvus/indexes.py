"""Vector indexes of Milvus.

The type of an index depends on the size of the corpus. The effort of searches depends on measured recall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain
from math import sqrt
from time import perf_counter

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.indexes.building import CERTAIN, CONFIDENCE
from serving.corpora.stores.milvus import rows
from serving.corpora.stores.milvus.registry import Measured
from serving.corpora.stores.milvus.table import DEEPEST, Rows

QUERIES = 200
"""Maximum number of passages that serve as queries of the measurement. Each is left out of its own hits."""
NEIGHBOURS = 10
IN_MEMORY = 5_000_000
"""Maximum number of passages for which the graph of HNSW and the float32 vectors are kept in memory."""
QUANTIZED = 50_000_000
"""Maximum number of passages for which vectors with one byte per component are kept in memory. With more passages,
DISKANN keeps them on disk."""
OF_LITE = ("FLAT", "HNSW", "IVF_SQ8")
"""Types of indexes that Milvus Lite supports. It reports an unsupported type only when it builds the index."""
METRIC = "IP"
"""Inner product. The vectors are unit vectors, so inner products are cosines."""


@dataclass(frozen=True)
class IndexKind:
    """A type of index: the parameters of its build, and the parameter that trades the speed of a search for recall."""

    name: str
    parameters: Callable[[int], dict[str, int]]
    effort: str = ""
    efforts: Sequence[int] = ()
    at_least_k: bool = True
    """True if the effort must be at least the number of hits."""


def _cells(passages: int) -> int:
    return int(np.clip(4 * sqrt(passages), 128, 65_536))


KINDS: dict[str, IndexKind] = {
    kind.name: kind
    for kind in (
        IndexKind("FLAT", lambda _: {}),
        IndexKind("HNSW", lambda _: {"M": 32, "efConstruction": 200}, "ef", (16, 32, 64, 128, 256, 512, 1024)),
        IndexKind(
            "IVF_SQ8", lambda n: {"nlist": _cells(n)}, "nprobe", (8, 16, 32, 64, 128, 256, 512), at_least_k=False
        ),
        IndexKind("DISKANN", lambda _: {}, "search_list", (16, 32, 64, 128, 256, 512)),
        IndexKind(
            "GPU_CAGRA",
            lambda _: {"intermediate_graph_degree": 64, "graph_degree": 32},
            "itopk_size",
            (32, 64, 128, 256, 512),
        ),
    )
}


def planned(passages: int, target: float, option: str, *, lite: bool) -> list[str]:
    """Return the types of index to try, best first, for a corpus of about this many passages.

    `option` is the setting `--index`. Milvus Lite is for small corpora, so it is exact unless the option is `cpu`.
    """
    if option == "exact" or target >= CERTAIN or (lite and option == "auto"):
        return ["FLAT"]
    by_size = "HNSW" if passages <= IN_MEMORY else "IVF_SQ8" if passages <= QUANTIZED else "DISKANN"
    kinds = dict.fromkeys([*(["GPU_CAGRA"] if option == "gpu" else []), by_size, "HNSW"])
    return [kind for kind in kinds if not lite or kind in OF_LITE]


def search_parameters(kind: str, measured: Measured | None, k: int, *, most: bool) -> dict[str, int]:
    """Return the parameters of a search for `k` hits.

    They use the measured effort or, with `most`, the greatest effort.
    """
    found = KINDS[kind]
    if not found.effort:
        return {}
    effort = found.efforts[-1] if most else measured.effort[found.effort] if measured else found.efforts[2]
    return {found.effort: min(max(effort, k), DEEPEST) if found.at_least_k else effort}


def measure(corpus: Rows, kind: str, target: float) -> Measured:
    """Return the lowest effort with which recall@10 reaches `target`, compared with exact search.

    The sample is drawn by hashes of the primary keys. If no effort reaches the target, return the greatest effort.
    """
    begin = perf_counter()
    names = nsmallest(QUERIES, (row["id"] for block in corpus.each(["id"]) for row in block), key=rows.number)
    queries = np.stack([rows.vector(row) for row in _in_order(names, corpus.get(names, ["id", rows.VECTOR]))])
    truth, passages = _nearest(corpus, names, queries)
    for effort in KINDS[kind].efforts or (0,):
        named = {KINDS[kind].effort: effort} if KINDS[kind].effort else {}
        found = corpus.nearest(queries, NEIGHBOURS + 1, named)
        hits = [len(set(_others(one, name)) & true) for one, name, true in zip(found, names, truth, strict=True)]
        recalls = np.array([hit / len(true) if true else 1.0 for hit, true in zip(hits, truth, strict=True)])
        margin = CONFIDENCE * recalls.std() / sqrt(len(recalls))
        if recalls.mean() - margin >= target:
            break
    return Measured(named, round(float(recalls.mean()), 4), len(names), passages, round(perf_counter() - begin, 2))


def _nearest(corpus: Rows, names: Sequence[str], queries: Floats) -> tuple[list[set[str]], int]:
    """Return the ids of the nearest passages of each query, by a scan of all vectors, and the number of passages."""
    best: list[list[tuple[float, str]]] = [[] for _ in names]
    passages = 0
    for block in corpus.each(["id", rows.VECTOR]):
        ids = [row["id"] for row in block]
        passages += len(ids)
        cosines = queries @ np.stack([rows.vector(row) for row in block]).T
        for i, scores in enumerate(cosines):
            top = np.argsort(-scores)[: NEIGHBOURS + 1]
            found = ((-float(scores[at]), ids[at]) for at in top if ids[at] != names[i])
            best[i] = nsmallest(NEIGHBOURS, chain(best[i], found))
    return [{id for _, id in found} for found in best], passages


def _others(found: Sequence[str], name: str) -> list[str]:
    return [id for id in found if id != name][:NEIGHBOURS]


def _in_order(names: Sequence[str], found: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    by_name = {row["id"]: row for row in found}
    return [by_name[name] for name in names]
