"""Texts to vectors: our server over HTTP against sentence-transformers called directly, same bundle, same texts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np

from benchmarks.interleave import interleaved, rates
from models.python_docs import sections

BUNDLE = Path("artifacts/default")
TEXTS = 256
BATCH = 32
ROUNDS = 5


@contextmanager
def server(bundle: Path) -> Iterator[str]:
    """A server process of its own on a free port; its address."""
    with TemporaryDirectory() as data:
        command = [sys.executable, "-m", "serving", "--bundle", str(bundle), "--data", data, "--port", "0", "--no-demo"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            ready = next(line for line in process.stdout if "ready on" in line)
            yield ready.split("ready on ")[1].split()[0]
        finally:
            process.terminate()
            process.wait(30)


def measure() -> dict[str, Any]:
    """Mixed documents in batches of 32 by 4 clients, and short texts one at a time by 32 clients."""
    from sentence_transformers import SentenceTransformer

    mixed = [section.text for section in islice(sections(), 0, TEXTS * 16, 16)]
    short = [text.split(". ")[0][:80] for text in mixed]
    peer = SentenceTransformer(str(BUNDLE), device="cpu")
    with server(BUNDLE) as address, httpx.Client(base_url=address, timeout=300) as client:
        info = client.get("/info").raise_for_status().json()

        def post(texts: list[str]) -> np.ndarray[Any, Any]:
            answer = client.post("/embed", json={"inputs": texts})
            answer.raise_for_status()
            return np.array(answer.json())

        def batches() -> None:
            with ThreadPoolExecutor(4) as clients:
                list(clients.map(post, [mixed[i : i + BATCH] for i in range(0, TEXTS, BATCH)]))

        def singles() -> None:
            with ThreadPoolExecutor(32) as clients:
                list(clients.map(lambda text: post([text]), short))

        cosine = float((post(mixed) * peer.encode(mixed)).sum(axis=1).min())
        in_batches = interleaved(
            {"ours_http": batches, "sentence_transformers": lambda: peer.encode(mixed, batch_size=BATCH)}, ROUNDS
        )
        one_by_one = interleaved(
            {"ours_http": singles, "sentence_transformers": lambda: [peer.encode([text]) for text in short]}, ROUNDS
        )
        unloaded = [_seconds(partial(post, [text])) for text in short[:100]]
    return {
        "setting": (
            f"{TEXTS} documents of the Python documentation; engine {info['engine']} {info['precision']}; "
            f"{ROUNDS} rounds"
        ),
        "figures": {
            "smallest_cosine_between_both": round(cosine, 6),
            "batches_of_32_by_4_clients": rates(in_batches, TEXTS, "sentence_transformers"),
            "one_short_text_by_32_clients": rates(one_by_one, TEXTS, "sentence_transformers"),
            "one_short_text_unloaded_ms": {
                "p50": round(float(np.percentile(unloaded, 50)) * 1e3, 2),
                "p99": round(float(np.percentile(unloaded, 99)) * 1e3, 2),
            },
        },
    }


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
