"""Corpora on Milvus at several sizes: rows stored per second, bytes, recall, search latency and CPU time.

    python -m benchmarks.search.milvus 10000                                         # a Milvus Lite in this process
    python -m benchmarks.search.milvus 1000000 --store milvus://host:19530           # a Milvus server

The vectors are those of `benchmarks.search`. With a Milvus server, the CPU time does not include the server.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.search.corpus import NAME, K, Ours, calls
from benchmarks.search.measure import DIM, questions, true_neighbours
from benchmarks.search.mixture import on_disk
from benchmarks.surroundings import RESULTS, surroundings, write
from models.cli.command_line import Parser
from serving.corpora.stores.milvus.corpora import MilvusCorpora
from serving.corpora.values import Corpus
from serving.settings import Settings

ROUNDS, SECONDS = 3, 1.0
FILE = RESULTS / "milvus.json"


class OnMilvus(Ours):
    """The benchmark's corpus, stored on Milvus and indexed as in a server."""

    def __init__(self, folder: Path, store: str, rows: int) -> None:
        self._settings = Settings(data=folder, store=store, index="cpu", expected_passages=rows)
        super().__init__(folder)

    def flush(self) -> None:
        """Let Milvus Lite write its rows into files, where it searches them faster."""
        milvus: Any = self.corpora
        milvus._connection.client.flush(milvus._registry.read(NAME).table.collection)

    def _open(self) -> MilvusCorpora:  # type: ignore[override]
        return MilvusCorpora(self._settings)


def measure(rows: int, store: str | None) -> dict[str, Any]:
    """Store `rows` rows, measure the recall, search one query after another, and return the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder, lite = Path(name), Path(name, "milvus.db")
        base = on_disk(folder / "base.npy", rows, DIM)
        queries = questions(rows)
        ours = OnMilvus(folder / "ours", store or str(lite), rows)
        if not ours.corpora.create(Corpus(NAME)):
            raise FileExistsError(f"{store} has a corpus {NAME!r}, which the benchmark would delete")
        try:
            began, cpu = time.perf_counter(), time.process_time()
            ours.add(base)
            stored_s, cpu = time.perf_counter() - began, time.process_time() - cpu
            if store is None:
                ours.flush()
            report = ours.build()
            searches = _searches(ours, queries, base)
        finally:
            if store:
                ours.corpora.drop(NAME)
            ours.corpora.close()
        found = {
            "rows_per_s": round(rows / stored_s),
            "cpu_ms_per_row": round(1000 * cpu / rows, 3),
            "index": {key: report[key] for key in ("kind", "parameters", "recall", "target")},
            "measuring_recall_s": report["build_seconds"],
            "searches": searches,
        }
        if store is None:
            found["bytes_per_row"] = round(sum(file.stat().st_size for file in lite.rglob("data_*.parquet")) / rows)
        return found


def _searches(ours: Ours, queries: Any, base: Any) -> dict[str, float]:
    rates, costs = [], []
    for _ in range(ROUNDS):
        cpu = time.process_time()
        taken = calls(ours.search, queries, 1, 2, seconds=SECONDS)
        costs.append(1000 * (time.process_time() - cpu) / taken["queries"])
        rates.append(taken["queries"] / taken["seconds"])
    truth, hits = true_neighbours(base, queries[:200]), ours.search(queries[:200])
    recall = fmean(len(true & set(found)) / K for true, found in zip(truth, hits, strict=True))
    return {
        "per_s": round(median(rates), 1),
        "cpu_ms": round(median(costs), 2),
        "recall_at_10": round(recall, 4),
    }


def main() -> None:
    """Measure each size and store the figures."""
    parser = Parser(
        prog="python -m benchmarks.search.milvus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", type=int, nargs="+", help="numbers of rows")
    parser.add_argument("--store", help="address of a Milvus server (default: a Milvus Lite)")
    given = parser.parse_args()
    figures = {f"{rows:,}": measure(rows, given.store) for rows in given.rows}
    command = " ".join(["python -m benchmarks.search.milvus", *map(str, given.rows)])
    write(FILE, {"command": command, **surroundings(), "lite": given.store is None, "figures": figures})
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
