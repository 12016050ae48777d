"""`python vectors.py txtai|qdrant VECTORS.npy`: vector search by another project, with its default settings.

The interpreter of the peer's environment runs this script, so it imports no code of this project. Each line on stdin
and stdout is JSON:

    at the start                                             ->  {"ready": true, "build_seconds": …}
    {"queries": FILE.npy, "at_a_time": 100, "seconds": 2.0}  ->  {"seconds", "queries", "latencies"}
    {"queries": FILE.npy}                                    ->  {"rows": [[row, …], …]}   the best ten of each
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

K = 10
Vectors = np.ndarray[Any, np.dtype[np.float32]]


class Txtai:
    """txtai's index of vectors that the caller computed."""

    def __init__(self) -> None:
        from txtai import Embeddings

        self._embeddings = Embeddings(method="external", transform=lambda rows: rows, content=False)

    def add(self, vectors: Vectors) -> None:
        """Add all vectors at once. A vector's name is its row."""
        self._embeddings.index((row, vector, None) for row, vector in enumerate(vectors))

    def search(self, queries: Vectors) -> list[list[int]]:
        return [[int(row) for row, _ in hits] for hits in self._embeddings.batchsearch(list(queries), K)]


class Qdrant:
    """Local mode of Qdrant's client."""

    BLOCK = 10_000

    def __init__(self) -> None:
        from qdrant_client import QdrantClient  # type: ignore[import-not-found]

        self._client = QdrantClient(":memory:")

    def add(self, vectors: Vectors) -> None:
        from qdrant_client import models

        size = vectors.shape[1]
        self._client.create_collection("c", models.VectorParams(size=size, distance=models.Distance.COSINE))
        for start in range(0, len(vectors), self.BLOCK):
            block = vectors[start : start + self.BLOCK]
            ids = list(range(start, start + len(block)))
            self._client.upsert("c", models.Batch(ids=ids, vectors=block.tolist()))

    def search(self, queries: Vectors) -> list[list[int]]:
        found = [self._client.query_points("c", query=query, limit=K, with_payload=False) for query in queries]
        return [[int(point.id) for point in one.points] for one in found]


PEERS: dict[str, type[Txtai | Qdrant]] = {"txtai": Txtai, "qdrant": Qdrant}


def main(name: str, file: str) -> None:
    """Read tasks from stdin and write results to stdout, until stdin ends."""
    peer = PEERS[name]()
    vectors = np.load(file, mmap_mode="r")
    began = time.perf_counter()
    peer.add(vectors)
    _reply({"ready": True, "build_seconds": time.perf_counter() - began})
    for line in sys.stdin:
        asked = json.loads(line)
        queries = np.load(asked["queries"])
        if "seconds" in asked:
            _reply(_calls(peer, queries, asked["at_a_time"], asked["seconds"]))
        else:
            _reply({"rows": peer.search(queries)})


def _calls(peer: Txtai | Qdrant, queries: Vectors, at_a_time: int, seconds: float) -> dict[str, Any]:
    parts: Sequence[Vectors] = [queries[i : i + at_a_time] for i in range(0, len(queries), at_a_time)]
    latencies: list[float] = []
    done, began = 0, time.perf_counter()
    for part in cycle(parts):
        started = time.perf_counter()
        if started - began > seconds:
            break
        peer.search(part)
        done += len(part)
        latencies.append(time.perf_counter() - started)
    return {"seconds": time.perf_counter() - began, "queries": done, "latencies": latencies}


def _reply(content: dict[str, Any]) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
