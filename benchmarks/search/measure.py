"""Our search, FAISS alone, txtai and Qdrant's local mode, measured in turns on the same vectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import faiss
import numpy as np

from benchmarks.peers import python
from benchmarks.search.corpus import K, Ours, Raw, calls
from benchmarks.search.mixture import Vectors, mixture, on_disk
from benchmarks.serving.processes import ask, memory_mb
from models import cpus

SIZES = (10_000, 100_000, 1_000_000)
DIM = 384
QUERIES = 1000
ROUNDS, SECONDS = 3, 3.0
WAYS = {"batches": (100, 1), "batches side by side": (100, cpus.available()), "one by one": (1, cpus.available())}
"""Queries per call and number of concurrent callers of each way in which our search and FAISS are measured."""
PEERS = {"txtai": 100, "qdrant": 10}
"""Queries per call of each peer. Qdrant's local mode compares each query with every vector."""
JUDGED = 200
"""Number of queries whose hits are compared with the true neighbours. A slow peer gets a tenth of them."""
SCRIPT = Path(__file__).resolve().parents[1] / "peers" / "vectors.py"
Search = Callable[[Vectors], Sequence[Sequence[int]]]
Take = Callable[[], dict[str, Any]]


def measure(sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """Return, for each size, the cost of storing and indexing vectors, and each search's speed and recall."""
    figures = {}
    for size in sizes:
        figures[f"{size:,}"] = _one_size(size)
        # Each size takes minutes, so its figures are printed when they are complete.
        print(f"{size:,}:", json.dumps(figures[f"{size:,}"], indent=2), flush=True)
    return {"figures": figures}


def _one_size(size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        base = on_disk(folder / "base.npy", size, DIM)
        queries = questions(size)
        np.save(folder / "queries.npy", queries)
        ours = Ours(folder / "ours")
        began = time.perf_counter()
        ours.add(base)
        figures: dict[str, Any] = {"ingest_documents_per_s": round(size / (time.perf_counter() - began))}
        report = ours.build()
        figures |= {"index": report, "bytes_per_document": {k: v / size for k, v in ours.bytes().items()}}
        figures["memory_mb"] = memory_mb(os.getpid())
        contestants = _asked("ours", ours.search, queries)
        exact = partial(ours.search, exact=True)
        contestants["ours, exact"] = exact, partial(calls, exact, queries, *WAYS["batches"], seconds=SECONDS)
        if report["kind"] != "exact":
            contestants |= _asked("faiss", Raw(folder / "ours", report).search, queries)
        for peer in _peers():
            contestants[peer], built = running.enter_context(_peer(peer, folder))
            figures[f"{peer}_build_s"] = built
        truth = true_neighbours(base, queries)
        figures["searches"] = _in_turns(contestants, queries, truth)
        ours.corpora.close()
    return figures


def questions(size: int) -> Vectors:
    """Return queries (Q, D) from the mixture of which `size` vectors are stored."""
    return np.concatenate(list(mixture(QUERIES, DIM, clusters=round(size**0.5), part=1)))


def true_neighbours(base: Vectors, queries: Vectors) -> list[set[int]]:
    """Return the true neighbours of each query. FAISS computes them by brute force, independently of our code."""
    _, rows = faiss.knn(queries, np.ascontiguousarray(base), K, metric=faiss.METRIC_INNER_PRODUCT)
    return [set(map(int, found)) for found in rows]


def _asked(name: str, search: Search, queries: Vectors) -> dict[str, tuple[Search, Take]]:
    return {
        f"{name}, {way}": (search, partial(calls, search, queries, *how, seconds=SECONDS)) for way, how in WAYS.items()
    }


def _in_turns(
    contestants: dict[str, tuple[Search, Take]], queries: Vectors, truth: Sequence[set[int]]
) -> dict[str, Any]:
    sampled: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, (_, take) in contestants.items():
            sampled[name].append(take())
    figures = {}
    for name, (search, _) in contestants.items():
        quick = median(map(_rate, sampled[name])) > JUDGED / 10
        found = search(queries[: JUDGED if quick else JUDGED // 10])
        latencies = np.concatenate([sample["latencies"] for sample in sampled[name]])
        figures[name] = {
            "queries_per_s": round(median(map(_rate, sampled[name])), 1),
            "recall_at_10": round(float(np.mean([len(t & set(f)) / K for t, f in zip(truth, found, strict=False)])), 4),
            "call_p50_ms": round(1000 * float(np.quantile(latencies, 0.5)), 3),
            "call_p99_ms": round(1000 * float(np.quantile(latencies, 0.99)), 3),
        }
        owner, _, way = name.partition(", ")
        if owner == "ours" and (raw := sampled.get(f"faiss, {way}")):
            figures[name]["times_faiss"] = round(
                median(_rate(ours) / _rate(theirs) for ours, theirs in zip(sampled[name], raw, strict=True)), 3
            )
    return figures


def _rate(sample: dict[str, Any]) -> float:
    return float(sample["queries"] / sample["seconds"])


def _peers() -> list[str]:
    if python("search").exists():
        return list(PEERS)
    print(f"{' and '.join(PEERS)} are left out: install them with `python -m benchmarks.peers search`", file=sys.stderr)
    return []


@contextmanager
def _peer(name: str, folder: Path) -> Iterator[tuple[tuple[Search, Take], float]]:
    command = [str(python("search")), str(SCRIPT), name, str(folder / "base.npy")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        built = json.loads(process.stdout.readline())["build_seconds"]
        queries = str(folder / "queries.npy")

        def search(asked: Vectors) -> list[list[int]]:
            np.save(folder / "asked.npy", asked)
            rows: list[list[int]] = ask(process, {"queries": str(folder / "asked.npy")})["rows"]
            return rows

        def take() -> dict[str, Any]:
            return ask(process, {"queries": queries, "at_a_time": PEERS[name], "seconds": SECONDS})

        try:
            yield (search, take), round(built, 2)
        finally:
            process.stdin.close()
            process.wait(30)


if __name__ == "__main__":
    measure([int(size) for size in sys.argv[1:]] or SIZES)
