"""Every kind of index on clustered vectors: build time, bytes, and speed at the target recall.

The benchmark also compares the recall with different kinds of queries.

OMP_NUM_THREADS=1 python -m benchmarks.indexes --vectors 100000 --to benchmarks/results/indexes.json
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import faiss
import numpy as np

from benchmarks.interleave import seconds_of
from benchmarks.surroundings import surroundings, write
from models.cli.command_line import Parser
from models.runtimes.base import Floats
from serving.corpora.indexes import KINDS
from serving.corpora.indexes.building import QUERIES, SHARES, recall, tune
from serving.corpora.indexes.exact import nearest
from serving.corpora.indexes.gpu import GPU_KINDS, trouble
from serving.corpora.indexes.kind import BuildError, Candidates, Kind
from serving.corpora.indexes.saved import write_vectors
from serving.corpora.indexes.state import Approximate, Main, Marks, Tuning
from serving.corpora.ports import Ranking

TARGET = 0.95
ROUNDS = 5
FRESH = 1_000
EVERY = {**KINDS, **GPU_KINDS}


def clustered(count: int, dim: int, seed: int = 0) -> Floats:
    """Return unit vectors of a Gaussian mixture with one centre per 500 vectors.

    Within a cluster, the variance of axis i is proportional to 1 / i.
    """
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, count // 500), dim), np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    spread = np.arange(1, dim + 1, dtype=np.float32) ** -0.5
    spread *= 0.8 / np.linalg.norm(spread)
    turned = np.linalg.qr(rng.standard_normal((dim, dim)))[0].astype(np.float32)
    vectors = np.empty((count, dim), np.float32)
    for start in range(0, count, 50_000):
        block = vectors[start : start + 50_000]
        noise = rng.standard_normal(block.shape, np.float32) * spread
        block[:] = centres[rng.integers(len(centres), size=len(block))] + noise @ turned
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return vectors


def measured(kind: Kind, exact: Main, held: Floats, fresh: Floats, folder: Path) -> dict[str, Any]:
    """Build an index, tune it with the queries `held`, time it with the queries `fresh`, and return the figures."""
    parameters = kind.parameters(*exact.vectors.shape)
    begin = perf_counter()
    index = kind.build(exact.vectors, parameters, lambda: None)
    seconds = perf_counter() - begin
    path = folder / kind.name
    kind.write(index, str(path))
    del index
    begin = perf_counter()
    index = kind.read(str(path), exact.vectors)
    opening = perf_counter() - begin
    approximate = Approximate(kind, parameters, index)
    found = searched(approximate, exact, held, fresh)
    if "fails" not in found:
        found["recall_of_own"] = round(own_recall(replace(exact, approximate=approximate), found["efforts"][1.0]), 4)
    return {
        "kind": kind.name,
        "parameters": dict(parameters),
        "build_s": round(seconds, 1),
        "open_s": round(opening, 3),
        "index_bytes_a_vector": round(path.stat().st_size / len(exact.keys), 1),
        **found,
    }


def searched(
    approximate: Approximate,
    exact: Main,
    held: Floats,
    fresh: Floats,
    *,
    shares: Sequence[float] = SHARES,
    threads: int = 1,
) -> dict[str, Any]:
    """Tune an index with the queries `held`, time it with the queries `fresh`, and return the figures.

    The index is timed through `Main` on `threads` threads, and also alone.
    """
    main = replace(exact, approximate=approximate)
    begin = perf_counter()
    try:
        tuning = tune(main, held, TARGET, lambda: None, shares)
    except BuildError as error:
        return {"fails": str(error)}
    tuned = replace(main, tuning=tuning)
    effort, marks = tuning.efforts[1.0], Marks(len(exact.keys))

    def search(queries: Floats) -> list[Ranking]:
        return tuned.search(queries, 10, marks, threads=threads)

    return {
        "tune_s": round(perf_counter() - begin, 1),
        "efforts": dict(tuning.efforts),
        "recall_by_share": {share: round(value, 4) for share, value in tuning.recalls.items()},
        "recall_fresh": round(float(recall(search(fresh), nearest(exact.keys, exact.vectors, fresh, 10)).mean()), 4),
        "qps_batch": round(rate(lambda: search(fresh), len(fresh))),
        "qps_one": round(rate(lambda: [search(one[None]) for one in fresh[:200]], 200)),
        "qps_raw": round(rate(lambda: raw(approximate, effort, fresh, threads), len(fresh))),
    }


def own_recall(main: Main, effort: int) -> float:
    """Return the recall with the index's own vectors as queries. A vector is not counted as its own neighbour."""
    own = np.random.default_rng(2).choice(len(main.keys), 400, replace=False)
    others = Marks(len(main.keys)).without(own)
    truth = nearest(main.keys, main.vectors, main.vectors[own], 10, others.rows)
    return float(recall(main.candidates(main.vectors[own], 10, effort, others.bitmap), truth).mean())


def raw(approximate: Approximate, effort: int, queries: Floats, threads: int) -> None:
    """Search with FAISS alone, with the same search parameter as in `Main`."""
    faiss.omp_set_num_threads(threads)
    kind, _, index = approximate
    kind.search(index, queries, Candidates(10 * kind.refined, effort, None))


def rate(call: Callable[[], object], queries: int) -> float:
    """Return queries per second: the median over rounds."""
    call()
    return queries / median(seconds_of(call) for _ in range(ROUNDS))


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument(
        "--kinds", nargs="*", default=[*KINDS], choices=EVERY, help="index kinds (default: the CPU kinds)"
    )
    parser.add_argument("--to", type=Path)
    given = parser.parse_args()
    if GPU_KINDS.keys() & given.kinds and (reason := trouble()):
        parser.error(f"--kinds: {reason}")
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1, so that all kinds are built and searched on one thread")
    everything = clustered(given.vectors + QUERIES + FRESH, given.dim)
    held, fresh = everything[given.vectors : given.vectors + QUERIES], everything[given.vectors + QUERIES :]
    with tempfile.TemporaryDirectory() as folder:
        keys = np.arange(1, given.vectors + 1)
        keys, vectors = write_vectors(Path(folder) / "vectors", given.dim, [(keys, everything[: given.vectors])])
        exact = Main(keys, vectors, None, Tuning(TARGET))
        marks = Marks(len(keys))
        rows: list[dict[str, Any]] = [
            {
                "kind": "exact",
                "qps_batch": round(rate(lambda: exact.search(fresh[:200], 10, marks), 200)),
                "qps_one": round(rate(lambda: [exact.search(one[None], 10, marks) for one in fresh[:20]], 20)),
            }
        ]
        print(json.dumps(rows[0]), flush=True)
        for name in given.kinds:
            rows.append(measured(EVERY[name], exact, held, fresh, Path(folder)))
            print(json.dumps(rows[-1]), flush=True)
    if given.to:
        command = f"OMP_NUM_THREADS=1 {shlex.join(['python', '-m', 'benchmarks.indexes', *sys.argv[1:]])}"
        kept = {"command": command, **surroundings(), "vectors": given.vectors, "dim": given.dim, "kinds": rows}
        write(given.to, kept)


if __name__ == "__main__":
    main()
