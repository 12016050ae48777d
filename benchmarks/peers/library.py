"""`python library.py NAME BUNDLE [THREADS [session|call [DEVICE PRECISION]]]`: a contestant without a server.

`fastembed`, `embed-anything`, `ctranslate2` and `sentence-transformers` embed the texts of one request per call. They
import no code of this project, so the interpreter of a peer's environment can run them. Any other name is one of our
runtimes, called directly on texts tokenised beforehand. A `session` uses all streams at once with batches sorted by
length: the upper bound for a server on that engine. A `call` uses all threads for the texts of one request at a time:
the lower bound of a request's time. Each line on stdin and stdout is JSON:

    {"populations": {name: {"texts": [...], "tokens": [...]}}, "max_length": 256}   ->  {"ready": true}
    {"embed": [text, ...]}                                                          ->  {"vectors": [[...], ...]}
    {"texts": population, "per_request": 32, "seconds": 1.5}                        ->  {"seconds", "texts", ...}
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Vectors = np.ndarray[Any, np.dtype[np.float32]]


class Batch(NamedTuple):
    """The input of one call, and the rows of its texts."""

    work: Any
    rows: Sequence[int]


class Library:
    """A library that embeds the texts of one request per call, and makes one call at a time."""

    of_requests = True
    """True if each call processes the texts of one request."""
    streams = 1
    """Number of concurrent calls."""

    def batches(self, texts: Sequence[str], per_request: int) -> list[Batch]:
        """Return the inputs of all calls. The time for this preparation is not measured."""
        return [Batch([texts[row] for row in rows], rows) for rows in _requests(len(texts), per_request)]

    def embed(self, work: Any) -> Vectors:
        """Make one call, and return unit vectors (N, D)."""
        raise NotImplementedError


class Fastembed(Library):
    """fastembed with its default settings, on the bundle's graph."""

    def __init__(self, bundle: Path, max_length: int) -> None:
        from fastembed import TextEmbedding  # type: ignore[import-not-found]
        from fastembed.common.model_description import (  # type: ignore[import-not-found]
            ModelSource,
            PoolingType,
        )

        TextEmbedding.add_custom_model(
            model="bundle",
            pooling=PoolingType.DISABLED,  # The graph includes pooling and normalisation.
            normalization=False,
            sources=ModelSource(hf="bundle"),
            dim=json.loads((bundle / "config.json").read_text())["hidden_size"],
            model_file="onnx/model.onnx",
        )
        with tempfile.TemporaryDirectory() as folder:
            self._model = TextEmbedding("bundle", specific_model_path=str(_cut_at(max_length, bundle, Path(folder))))

    def embed(self, work: Any) -> Vectors:
        return np.stack(list(self._model.embed(work)))


class EmbedAnything(Library):
    """embed_anything on a graph in the layout of the hub. It loads models from the hub's cache alone."""

    def __init__(self, model: Path, max_length: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HF_HOME"] = str(_hub_cache(max_length, model, Path(folder)))
            import embed_anything  # type: ignore[import-not-found]

            self._embed = embed_anything.embed_query
            self._model = embed_anything.EmbeddingModel.from_pretrained_onnx(
                embed_anything.WhichModel.Bert, hf_model_id="local/model", path_in_repo="onnx/model.onnx"
            )

    def embed(self, work: Any) -> Vectors:
        return np.array([found.embedding for found in self._embed(work, embedder=self._model)], np.float32)


class CTranslate2(Library):
    """CTranslate2's encoder with its default settings.

    It has no tokenizer, no pooling and no division of a request into batches: all three are added here.
    """

    BATCH_TOKENS = 32 * 256
    """Maximum tokens of a batch, including padding: 32 of the longest texts, as in sentence-transformers."""

    def __init__(self, model: Path, max_length: int) -> None:
        import ctranslate2  # type: ignore[import-not-found]
        from tokenizers import Tokenizer

        self._encoder = ctranslate2.Encoder(str(model))
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)

    def embed(self, work: Any) -> Vectors:
        tokens = [one.ids for one in self._tokenizer.encode_batch(work)]
        means: list[Vectors] = [np.empty(0, np.float32)] * len(tokens)
        for rows in _by_length([len(ids) for ids in tokens], self.BATCH_TOKENS):
            states = np.asarray(self._encoder.forward_batch([tokens[row] for row in rows]).last_hidden_state)
            for row, state in zip(rows, states, strict=True):
                means[row] = state[: len(tokens[row])].mean(axis=0)
        pooled = np.stack(means)
        vectors: Vectors = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return vectors


class SentenceTransformers(Library):
    """`SentenceTransformer.encode` with its default settings. For precision fp16, the weights are float16."""

    def __init__(self, bundle: Path, device: str, precision: str | None) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(bundle), device=device)
        if precision == "fp16":
            self._model.half()

    def embed(self, work: Any) -> Vectors:
        return np.asarray(self._model.encode(work, show_progress_bar=False), np.float32)


class Session(Library):
    """One of our runtimes with its own settings, called directly with token ids.

    The default precision is bfloat16 if the runtime supports it, and otherwise float32.
    """

    of_requests = False

    def __init__(
        self, name: str, bundle: Path, max_length: int, *, threads: int, device: Any, precision: str | None
    ) -> None:
        from models.bundle.bundle import load
        from models.bundle.tokenizer import Tokenizer
        from models.runtimes import RUNTIMES
        from models.runtimes.base import Options

        source, options = load(bundle), Options(device, threads)
        precision = precision or ("bf16" if "bf16" in RUNTIMES[name].precisions(source, options) else "fp32")
        self._runtime = RUNTIMES[name](source, precision, options)
        self._tokenizer = Tokenizer(source.tokenizer_file, max_length=max_length)
        if not self.of_requests:
            self.streams = self._runtime.streams

    def batches(self, texts: Sequence[str], per_request: int) -> list[Batch]:  # noqa: ARG002 - it has no requests
        """Return batches of the texts, tokenised, sorted by length and padded."""
        tokens = self._tokenizer.encode(texts)
        step = self._runtime.length_step
        padded = [len(one) + -len(one) % step for one in tokens]
        rows_of_batches = _by_length(padded, self._runtime.batch_tokens)
        return [Batch(self._tokenizer.pad([tokens[row] for row in rows]), rows) for rows in rows_of_batches]

    def embed(self, work: Any) -> Vectors:
        return self._runtime.run(*work).vectors


class Call(Session):
    """A runtime for a single client: each request was tokenised beforehand, and runs on all threads."""

    of_requests = True

    def batches(self, texts: Sequence[str], per_request: int) -> list[Batch]:
        """Return the requests in order, tokenised and padded."""
        tokens = self._tokenizer.encode(texts)
        requests = _requests(len(texts), per_request)
        return [Batch(self._tokenizer.pad([tokens[row] for row in rows]), rows) for rows in requests]

    def embed(self, work: Any) -> Vectors:
        return self._runtime.run(*work, alone=True).vectors


def main(name: str, folder: str, threads: str = "1", kind: str = "session", *place: str) -> None:
    """Read tasks from stdin and write results to stdout, until stdin ends."""
    bundle = Path(folder)
    device, precision = place or ("cpu", None)
    given = json.loads(sys.stdin.readline())
    library: Library
    if name == "fastembed":
        library = Fastembed(bundle, given["max_length"])
    elif name == "embed-anything":
        library = EmbedAnything(bundle, given["max_length"])
    elif name == "ctranslate2":
        library = CTranslate2(bundle, given["max_length"])
    elif name == "sentence-transformers":
        library = SentenceTransformers(bundle, device, precision)
    else:
        runtime = Call if kind == "call" else Session
        library = runtime(name, bundle, given["max_length"], threads=int(threads), device=device, precision=precision)

    @cache
    def prepared(texts: str, per_request: int) -> tuple[list[int], Iterator[Batch]]:
        population = given["populations"][texts]
        batches = library.batches(population["texts"], per_request)
        # The first batches sorted by length would not be representative. Requests keep the order of the servers.
        if not library.of_requests:
            random.Random(0).shuffle(batches)
        return population["tokens"], cycle(batches)

    _reply({"ready": True})
    if not library.of_requests:
        for population in given["populations"]:
            prepared(population, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        if "embed" in asked:
            _reply({"vectors": _vectors(library, asked["embed"]).tolist()})
        else:
            size = asked["per_request"] if library.of_requests else 1
            _reply(_calls(library, *prepared(asked["texts"], size), asked["seconds"]))


def _calls(library: Library, tokens: Sequence[int], batches: Iterator[Batch], seconds: float) -> dict[str, Any]:
    """Make calls until the time is up, on as many threads as the library has streams, and return the measurements."""
    began = time.perf_counter()
    ends = began + seconds
    calls: list[tuple[Batch, float]] = []

    def stream(_: int) -> None:
        finished = began
        while finished < ends:  # At least one call is made, even if the thread starts late.
            started, batch = time.perf_counter(), next(batches)
            library.embed(batch.work)
            finished = time.perf_counter()
            calls.append((batch, finished - started))

    with ThreadPoolExecutor(library.streams) as threads:
        deque(threads.map(stream, range(library.streams)), maxlen=0)
    return {
        "seconds": time.perf_counter() - began,
        "texts": sum(len(batch.rows) for batch, _ in calls),
        "tokens": sum(tokens[row] for batch, _ in calls for row in batch.rows),
        "latencies": [latency for _, latency in calls] if library.of_requests else [],
    }


def _requests(texts: int, per_request: int) -> list[range]:
    """Return the rows of the texts of each request, in order."""
    return [range(start, start + per_request) for start in range(0, texts - per_request + 1, per_request)]


def _vectors(library: Library, texts: Sequence[str]) -> Vectors:
    batches = library.batches(texts, len(texts))
    vectors = np.concatenate([library.embed(batch.work) for batch in batches])
    return vectors[np.argsort([row for batch in batches for row in batch.rows])]


def _by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the rows of texts sorted by length, in batches of at most `batch_tokens` tokens including padding."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if rows and (len(rows) + 1) * lengths[row] > batch_tokens:
            yield rows
            rows = []
        rows.append(row)
    yield rows


def _cut_at(max_length: int, bundle: Path, folder: Path) -> Path:
    """Return a folder with links to the bundle's files and a changed maximum length.

    fastembed and embed_anything read the maximum length from tokenizer_config.json.
    """
    for file in ("onnx", "config.json", "tokenizer.json"):
        (folder / file).symlink_to((bundle / file).resolve())
    config = json.loads((bundle / "tokenizer_config.json").read_text())
    config |= {"model_max_length": max_length, "max_length": max_length}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _hub_cache(max_length: int, model: Path, folder: Path) -> Path:
    """Return a cache of the hub that has the files of `_cut_at` as `local/model`, for embed_anything."""
    repository = folder / "hub" / "models--local--model"
    for part in ("refs", "snapshots/local"):
        (repository / part).mkdir(parents=True)
    (repository / "refs" / "main").write_text("local")
    _cut_at(max_length, model, repository / "snapshots" / "local")
    return folder


def _reply(content: dict[str, Any]) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
