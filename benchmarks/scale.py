"""The tables of docs/scale.md, computed from measured constants. Options replace constants by your own figures.

    python -m benchmarks.scale
    python -m benchmarks.scale --cpus 64 --memory-gb 256 --gpu-texts-per-s 20000
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log
from typing import Any, NamedTuple

from benchmarks.__main__ import RESULTS
from models.cli.command_line import Parser

DIM = 384
RATES = (100, 1000)
PQ, CACHE, DEGREE = 0.125, 0.1, 56
"""Milvus' defaults for DISKANN: product codes and cached nodes as parts of the vectors, and edges of a node."""
BUSY, FULL = 0.6, 0.7
"""Parts of the CPUs and of the memory of a machine that the plans use."""
Sizes = Mapping[int, float]


class Machines(NamedTuple):
    """What the user can choose."""

    cpus: int = 16
    memory_gb: int = 64
    segment_gb: float = 2
    """Segments of DISKANN in Milvus, `dataCoord.segment.diskSegmentMaxSize`. Segments in memory have half of it."""
    gpu_texts_per_s: int = 0


class Index(NamedTuple):
    """A type of index: bytes of a vector, and milliseconds of one CPU by number of vectors."""

    bytes: float
    build_ms: Sizes
    search_ms: Sizes


class Constants(NamedTuple):
    """Measured constants: milliseconds of CPU time, and bytes of a document."""

    embed_ms: dict[str, float]
    ray: float
    query_ms: float
    read_ms: float
    row_bytes: float
    store_bytes: float
    indexes: dict[str, Index]


class Plan(NamedTuple):
    """Where a corpus of this many documents is kept, and what it takes."""

    documents: int
    where: str
    memory_gb: float
    disk_gb: float
    build_h: float
    index_ms: float
    """CPU time of one search in the index, without the server."""


def measured() -> Constants:
    """Read the constants from benchmarks/results."""
    by_size = {one["vectors"]: {kind["kind"]: kind for kind in one["kinds"]} for one in _results("indexes_mixture")}
    indexes = {
        kind: Index(
            by_size[10**6][kind]["index_bytes_a_vector"],
            {n: 1000 * kinds[kind]["build_s"] / n for n, kinds in by_size.items()},
            {n: 1000 / kinds[kind]["qps_one"] for n, kinds in by_size.items()},
        )
        for kind in ("hnsw", "ivf-flat", "ivf-sq8")
    }
    search, milvus, ray = _result("search"), _result("milvus"), _result("on_ray")["embed"]
    million = search["figures"]["1,000,000"]
    ours, faiss = (million["searches"][f"{who}, one by one"]["queries_per_s"] for who in ("ours", "faiss"))
    return Constants(
        embed_ms={
            "with AMX": _result("ingest")["figures"]["job"]["cpu_ms_per_text"],
            "without AMX": round(1000 * min(one["cpu_s"] for one in ray["rounds"]["plain"]) / ray["rows"], 2),
        },
        ray=ray["plain_over_ray"]["cpu_s"],
        query_ms=_result("serving")["figures"]["loads"]["singles_32"]["isosphere"]["cpu_s_per_1000_texts"],
        read_ms=1000 * search["machine"]["cpus"] * (1 / ours - 1 / faiss),
        row_bytes=list(milvus["figures"].values())[-1]["bytes_per_row"],
        store_bytes=million["bytes_per_document"]["store"],
        indexes=indexes,
    )


def plans(known: Constants, machines: Machines) -> Iterable[Plan]:
    """Plan 10^7 documents on one server, and 10^7 to 10^9 on Milvus."""
    flat, sq8, graph = (known.indexes[kind] for kind in ("ivf-flat", "ivf-sq8", "hnsw"))
    others = known.row_bytes - 4 * DIM
    n = 10**7
    disk = known.store_bytes + 4 * DIM + flat.bytes
    built, searched = grown(flat.build_ms, n), grown(flat.search_ms, n)
    yield Plan(n, "SQLite, ivf-flat", n * flat.bytes / 1e9, n * disk / 1e9, n * built / 3.6e6, searched + known.read_ms)
    on_disk = Index(4 * (DIM + DEGREE), graph.build_ms, graph.search_ms)
    for n, kind, index, memory, gb in (
        (10**7, "IVF_SQ8", sq8, sq8.bytes, machines.segment_gb / 2),
        (10**8, "DISKANN", on_disk, 4 * DIM * (PQ + CACHE), machines.segment_gb),
        (10**9, "DISKANN", on_disk, 4 * DIM * (PQ + CACHE), machines.segment_gb),
    ):
        segment = gb * 1e9 / known.row_bytes
        searched = ceil(n / segment) * grown(index.search_ms, segment)
        bytes_on_disk = n * (known.row_bytes + index.bytes)
        built = n * grown(index.build_ms, segment) / 3.6e6
        yield Plan(n, f"Milvus, {kind}", n * (memory + others) / 1e9, bytes_on_disk / 1e9, built, searched)


def grown(by_size: Sizes, n: float) -> float:
    """Return the value for n, on the power law through the two measured sizes."""
    (small, low), (large, high) = sorted(by_size.items())
    return high * (n / large) ** (log(high / low) / log(large / small))


def tables(known: Constants, machines: Machines) -> list[str]:
    """Return the tables of the page: embedding, index, and search."""
    found = list(plans(known, machines))
    embedding = []
    for n in sorted({plan.documents for plan in found}):
        hours = {cpu: n * ms / 3.6e6 for cpu, ms in known.embed_ms.items()}
        alone = hours["with AMX"] / known.ray / machines.cpus
        gpu = f"{n / machines.gpu_texts_per_s / 3600:.1f}" if machines.gpu_texts_per_s else "not measured"
        embedding.append([f"{n:,}", *map(_rounded, hours.values()), _rounded(alone), _rounded(alone / 10), gpu])
    index = [
        [f"{p.documents:,}", p.where, _rounded(p.memory_gb), _rounded(p.disk_gb), _rounded(p.build_h)] for p in found
    ]
    search = [
        [f"{p.documents:,}", p.where, _rounded(p.index_ms), f"{rate:,}", *_search(p, rate, known, machines)]
        for p in found
        for rate in RATES
    ]
    one, ten = f"hours on 1 machine of {machines.cpus} CPUs", "on 10 machines"
    return [
        _table(["documents", *(f"CPU hours {cpu}" for cpu in known.embed_ms), one, ten, "GPU hours"], embedding),
        _table(["documents", "corpus", "memory, GB", "disk, GB", "CPU hours of the index"], index),
        _table(["documents", "corpus", "CPU ms in the index", "searches/s", "CPUs", "machines", "servers"], search),
    ]


def _search(plan: Plan, rate: int, known: Constants, machines: Machines) -> list[str]:
    """Return the CPUs of `rate` searches a second, the machines of the index, and the servers in front of Milvus."""
    on_milvus = plan.where.startswith("Milvus")
    server, index = (rate * ms / 1000 / BUSY for ms in (known.query_ms, plan.index_ms))
    by_cpu = ceil((index if on_milvus else index + server) / machines.cpus)
    by_memory = ceil(plan.memory_gb / machines.memory_gb / FULL)
    servers = str(ceil(server / machines.cpus)) if on_milvus else "the same"
    return [_rounded(server + index), str(max(by_cpu, by_memory)), servers]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def _rounded(value: float) -> str:
    """Round to two digits."""
    return f"{float(f'{value:.2g}'):,.{0 if value >= 10 else 1 if value >= 1 else 2}f}"


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _results(prefix: str) -> list[dict[str, Any]]:
    return [_result(file.stem) for file in RESULTS.glob(f"{prefix}_*.json")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = Parser(prog="python -m benchmarks.scale", description=__doc__)
    for name, default in Machines()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    print("\n\n".join(tables(measured(), Machines(**vars(parser.parse_args(arguments))))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
