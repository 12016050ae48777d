"""Tables of docs/scale.md, computed from measured constants.

The command's options set the machines and the loads for which the tables are computed.

python -m benchmarks.scale

python -m benchmarks.scale --cpus 64 --memory-gb 256 --gpu-texts-per-s 20000
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, log
from statistics import median
from typing import Any, NamedTuple

from benchmarks.surroundings import RESULTS, read
from models.cli.command_line import Parser

DIM = 384
RATES = (100, 1000)
PQ, CACHE, DEGREE = 0.125, 0.1, 56
"""Milvus' defaults for DISKANN: sizes of product codes and of cached nodes relative to the vectors, and edges per node.
"""
BUSY, FULL = 0.6, 0.7
"""Fractions of the CPUs and of the memory of a machine that searches use."""
Sizes = Mapping[int, float]


class Choice(NamedTuple):
    """Choices that the user can make by options."""

    cpus: int = 16
    memory_gb: int = 64
    segment_gb: float = 2
    """Segment size of DISKANN in Milvus, `dataCoord.segment.diskSegmentMaxSize`. In memory, it is half of this size."""
    gpu_texts_per_s: int = 0


class Index(NamedTuple):
    """A type of index: bytes per vector, and milliseconds of one CPU per search, by number of vectors."""

    bytes: float
    build_ms: Sizes
    search_ms: Sizes


class Constants(NamedTuple):
    """Measured constants: CPU milliseconds of an embedding, a query and a read, and stored bytes per document."""

    embed_ms: Mapping[str, float]
    on_ray: float
    query_ms: float
    read_ms: float
    row_bytes: float
    store_bytes: float
    indexes: Mapping[str, Index]


class Plan(NamedTuple):
    """Store of a corpus, and the machines and hours that it needs."""

    documents: int
    where: str
    memory_gb: float
    disk_gb: float
    build_h: float
    search_ms: float
    """CPU time of one search in the index, without the embedding of the query. On SQLite, it includes the time to
    read the hits.
    """


def measured() -> Constants:
    """Read the constants from benchmarks/results."""
    search, ray = read(RESULTS / "search.json"), read(RESULTS / "on_ray.json")["embed"]
    hundred_thousand, million = (search["figures"][size] for size in ("100,000", "1,000,000"))
    cpus = search["machine"]["cpus"]
    kinds = {one["kind"]: one for one in read(RESULTS / "indexes.json")["kinds"]}
    ours, faiss, smaller = (
        1000 * cpus / size["searches"][f"{who}, one by one"]["queries_per_s"]
        for who, size in (("ours", million), ("faiss", million), ("faiss", hundred_thousand))
    )
    graph = Index(
        kinds["hnsw"]["index_bytes_a_vector"],
        {10**5: hundred_thousand["index"]["build_seconds"] / 100, 10**6: million["index"]["build_seconds"] / 1000},
        {10**5: smaller, 10**6: faiss},
    )
    return Constants(
        embed_ms={
            "Xeon": read(RESULTS / "ingest.json")["figures"]["job"]["cpu_ms_per_text"],
            "EPYC": 1000 * ray["cpus"] * median(ray["seconds"]["plain"]) / ray["rows"],
        },
        on_ray=ray["speed_of_plain"]["median"],
        query_ms=read(RESULTS / "serving.json")["figures"]["loads"]["singles_32"]["isosphere"]["cpu_s_per_1000_texts"],
        read_ms=ours - faiss,
        row_bytes=list(read(RESULTS / "milvus.json")["figures"].values())[-1]["bytes_per_row"],
        store_bytes=million["bytes_per_document"]["store"],
        indexes={"hnsw": graph, **{kind: _ivf(kinds[kind]) for kind in ("ivf-flat", "ivf-sq8")}},
    )


def _ivf(one: Mapping[str, Any]) -> Index:
    """Extrapolate an IVF index from 10^5 vectors, because both times grow with its 4√N lists."""
    build, search = one["build_s"] / 100, 1000 / one["qps_one"]
    return Index(one["index_bytes_a_vector"], {10**5: build, 10**7: 10 * build}, {10**5: search, 10**7: 10 * search})


def plans(known: Constants, choice: Choice) -> Iterator[Plan]:
    """Plan 10^7 documents on one server, and 10^7 to 10^9 on Milvus."""
    flat, sq8, graph = (known.indexes[kind] for kind in ("ivf-flat", "ivf-sq8", "hnsw"))
    n = 10**7
    disk, built = known.store_bytes + 4 * DIM + flat.bytes, grown(flat.build_ms, n)
    searched = known.read_ms + grown(flat.search_ms, n)
    yield Plan(n, "SQLite, ivf-flat", n * flat.bytes / 1e9, n * disk / 1e9, n * built / 3.6e6, searched)
    on_disk = graph._replace(bytes=4 * (DIM + DEGREE))
    for n, kind, index, memory, gb in (
        (10**7, "IVF_SQ8", sq8, sq8.bytes, choice.segment_gb / 2),
        (10**8, "DISKANN", on_disk, 4 * DIM * (PQ + CACHE), choice.segment_gb),
        (10**9, "DISKANN", on_disk, 4 * DIM * (PQ + CACHE), choice.segment_gb),
    ):
        segment = gb * 1e9 / known.row_bytes
        memory_gb, disk_gb = n * (memory + known.row_bytes - 4 * DIM) / 1e9, n * (known.row_bytes + index.bytes) / 1e9
        built, searched = n * grown(index.build_ms, segment), ceil(n / segment) * grown(index.search_ms, segment)
        yield Plan(n, f"Milvus, {kind}", memory_gb, disk_gb, built / 3.6e6, searched)


def grown(by_size: Sizes, n: float) -> float:
    """Return the value for n, by a power law through the values for two sizes."""
    (small, low), (large, high) = sorted(by_size.items())
    exponent = log(high / low) / log(large / small)
    return high * float((n / large) ** exponent)


def tables(known: Constants, choice: Choice) -> list[str]:
    """Return the tables of the page: embedding, index, and searches."""
    found = list(plans(known, choice))
    embedding = []
    for n in sorted({plan.documents for plan in found}):
        hours = [n * ms / 3.6e6 for ms in known.embed_ms.values()]
        alone = hours[-1] / known.on_ray / choice.cpus
        gpu = _rounded(n / choice.gpu_texts_per_s / 3600) if choice.gpu_texts_per_s else "not measured"
        embedding.append([f"{n:,}", *map(_rounded, (*hours, alone, alone / 10)), gpu])
    index = [[f"{p.documents:,}", p.where, *map(_rounded, (p.memory_gb, p.disk_gb, p.build_h))] for p in found]
    search = [
        [f"{p.documents:,}", p.where, _rounded(p.search_ms), f"{rate:,}", *_search(p, rate, known, choice)]
        for p in found
        for rate in RATES
    ]
    one, ten = f"hours on Ray, 1 machine of {choice.cpus} CPUs", "10 machines"
    return [
        _table(["documents", *(f"CPU hours, {cpu}" for cpu in known.embed_ms), one, ten, "GPU hours"], embedding),
        _table(["documents", "corpus", "memory, GB", "disk, GB", "CPU hours of the index"], index),
        _table(["documents", "corpus", "CPU ms of a search", "searches/s", "CPUs", "machines", "servers"], search),
    ]


def _search(plan: Plan, rate: int, known: Constants, choice: Choice) -> list[str]:
    """Return the CPUs for `rate` searches per second, the machines for the index, and the servers before Milvus."""
    on_milvus = plan.where.startswith("Milvus")
    server, index = (rate * ms / 1000 / BUSY for ms in (known.query_ms, plan.search_ms))
    by_cpu = ceil((index if on_milvus else index + server) / choice.cpus)
    by_memory = ceil(plan.memory_gb / choice.memory_gb / FULL)
    servers = str(ceil(server / choice.cpus)) if on_milvus else "the same"
    return [_rounded(server + index), str(max(by_cpu, by_memory)), servers]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)).replace(
        " --- ", "---"
    )


def _rounded(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.{0 if value >= 10 else 1 if value >= 1 else 2}f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(prog="python -m benchmarks.scale", description=__doc__)
    for name, default in Choice()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    print("\n\n".join(tables(measured(), Choice(**vars(parser.parse_args(arguments))))))


if __name__ == "__main__":
    main()
