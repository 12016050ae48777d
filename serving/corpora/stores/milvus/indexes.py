"""Vector indexes of Milvus: their types by size of the corpus, the parameters of searches, and their reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from serving.corpora.indexes.building import CERTAIN
from serving.corpora.indexes.state import Report
from serving.corpora.stores.milvus.registry import Measured, Record
from serving.corpora.stores.milvus.table import DEEPEST
from serving.corpora.values import Size

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
    """A type of index: the parameters of its build, and the search parameter that trades speed for recall.

    `effort` is the name of this search parameter, and `efforts` are the values to choose from.
    """

    name: str
    parameters: Callable[[int], dict[str, int]]
    effort: str = ""
    efforts: Sequence[int] = ()
    at_least_k: bool = True
    """True if the effort must be at least the number of hits."""

    @property
    def public_name(self) -> str:
        """The name of this type of index in answers of the API."""
        return "exact" if self.name == "FLAT" else self.name.lower().replace("_", "-")


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
    """Return the types of index to try, best first, for a corpus of about this many passages and a recall `target`.

    `option` is the setting `--index`. Milvus Lite is for small corpora, so its index is exact if `option` is `auto`.
    """
    if option == "exact" or target >= CERTAIN or (lite and option == "auto"):
        return ["FLAT"]
    by_size = "HNSW" if passages <= IN_MEMORY else "IVF_SQ8" if passages <= QUANTIZED else "DISKANN"
    kinds = dict.fromkeys([*(["GPU_CAGRA"] if option == "gpu" else []), by_size, "HNSW"])
    return [kind for kind in kinds if not lite or kind in OF_LITE]


def search_parameters(kind: str, measured: Measured | None, k: int, *, most: bool) -> dict[str, int]:
    """Return the search parameters of an index of the type `kind`, for a search for `k` hits.

    The only parameter is the effort, which trades speed for recall. Exact search has no parameter. The effort is the
    measured one or, if `measured` is None, the third of the type's `efforts`. With `most`, it is the greatest of them.
    Some types need an effort of at least `k`, so a lower effort is raised to `k`.
    """
    found = KINDS[kind]
    if not found.effort:
        return {}
    effort = found.efforts[-1] if most else measured.effort[found.effort] if measured else found.efforts[2]
    return {found.effort: min(max(effort, k), DEEPEST) if found.at_least_k else effort}


def report(record: Record, size: Size) -> Report | None:
    """Return the report of a corpus's index, or None before the first document."""
    if record.table is None:
        return None
    kind, measured = KINDS[record.table.index], record.measured
    effort = search_parameters(kind.name, measured, 1, most=False)
    unmeasured = "exact search" if kind.name == "FLAT" else "the recall of this index was not measured yet"
    return Report(
        kind=kind.public_name,
        parameters={**record.table.parameters, **effort},
        target=record.corpus.wanted_recall,
        recall=measured.recall if measured else 1.0,
        queries=measured.queries if measured else 0,
        build_seconds=measured.seconds if measured else 0.0,
        bytes=size.bytes,
        main=size.passages,
        tail=0,
        dead=0,
        state="ready",
        reason=None if measured else unmeasured,
    )
