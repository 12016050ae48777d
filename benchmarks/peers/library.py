"""`python library.py NAME BUNDLE`: what has no server, called in a process of its own, told what to do on stdin.

`fastembed` embeds the texts of one request a call. `onnxruntime` and `openvino` are bare sessions on batches tokenised
beforehand and sorted by length: the most that a server on that engine could reach. Run by the interpreter of a peer's
environment, so nothing of ours is imported. Each line in and out is JSON:

    {"populations": {name: {"texts": [...], "tokens": [...]}}, "max_length": 256}   ->  {"ready": true}
    {"embed": [text, ...]}                                                          ->  {"vectors": [[...], ...]}
    {"texts": population, "per_request": 32, "seconds": 1.5}                        ->  {"seconds", "texts", ...}
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

BATCH_TOKENS = 2048
"""Padded tokens in one run of a bare session."""
Vectors = np.ndarray[Any, np.dtype[np.float32]]
Feed = dict[str, np.ndarray[Any, np.dtype[np.int64]]]


class Batch(NamedTuple):
    """What one call is given, and which of the texts that is."""

    work: Any
    rows: Sequence[int]


class Library(Protocol):
    """Something that embeds when called."""

    of_requests: bool
    """Whether a call answers one request."""

    def batches(self, texts: Sequence[str], per_request: int) -> list[Batch]:
        """Everything that may be done before the clock runs."""

    def embed(self, work: Any) -> Vectors:
        """One call: (N, D) unit vectors."""


class Fastembed:
    """Its own class for a model from a folder, at default settings, on the bundle's graph."""

    of_requests = True

    def __init__(self, bundle: Path, max_length: int) -> None:
        from fastembed import TextEmbedding  # type: ignore[import-not-found]
        from fastembed.common.model_description import (  # type: ignore[import-not-found]
            ModelSource,
            PoolingType,
        )

        TextEmbedding.add_custom_model(
            model="bundle",
            pooling=PoolingType.DISABLED,  # it is in the graph, and so is the length of 1
            normalization=False,
            sources=ModelSource(hf="bundle"),
            dim=json.loads((bundle / "config.json").read_text())["hidden_size"],
            model_file="onnx/model.onnx",
        )
        with tempfile.TemporaryDirectory() as folder:
            self._model = TextEmbedding("bundle", specific_model_path=str(_cut_at(max_length, bundle, Path(folder))))

    def batches(self, texts: Sequence[str], per_request: int) -> list[Batch]:
        """Requests as they come."""
        starts = range(0, len(texts) - per_request + 1, per_request)
        rows = [range(start, start + per_request) for start in starts]
        return [Batch([texts[row] for row in some], some) for some in rows]

    def embed(self, work: Any) -> Vectors:
        """One call of the library."""
        return np.stack(list(self._model.embed(work)))


class Session:
    """A bare session of an engine: token ids in, vectors out."""

    of_requests = False

    def __init__(self, bundle: Path, max_length: int, load: Callable[[Path], Callable[[Feed], Vectors]]) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)
        self._run = load(bundle / "onnx" / "model.onnx")

    def batches(self, texts: Sequence[str], per_request: int) -> list[Batch]:  # noqa: ARG002 - it has no requests
        """Tokenised, sorted, padded."""
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        return [Batch(_padded([ids[row] for row in rows]), rows) for rows in _by_length(ids)]

    def embed(self, work: Any) -> Vectors:
        """One run of the graph."""
        return self._run(work)


def onnxruntime_session(graph: Path) -> Callable[[Feed], Vectors]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    inputs = [node.name for node in session.get_inputs()]
    return lambda feed: session.run(["sentence_embedding"], {name: feed[name] for name in inputs})[0]


def openvino_session(graph: Path) -> Callable[[Feed], Vectors]:
    """In bf16 where the CPU has it: that is the runtime's own default."""
    import openvino

    compiled = openvino.Core().compile_model(graph, "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    inputs = [port.any_name for port in compiled.inputs]
    request = compiled.create_infer_request()

    def run(feed: Feed) -> Vectors:
        request.infer({name: feed[name] for name in inputs}, share_inputs=True)
        return np.array(request.get_tensor("sentence_embedding").data)

    return run


LIBRARIES: dict[str, Callable[[Path, int], Library]] = {
    "fastembed": Fastembed,
    "onnxruntime": lambda bundle, max_length: Session(bundle, max_length, onnxruntime_session),
    "openvino": lambda bundle, max_length: Session(bundle, max_length, openvino_session),
}


def main(name: str, bundle: Path) -> None:
    """Serve stdin until it ends."""
    given = json.loads(sys.stdin.readline())
    library = LIBRARIES[name](bundle, given["max_length"])

    @cache
    def prepared(texts: str, per_request: int) -> tuple[list[int], Iterator[Batch]]:
        population = given["populations"][texts]
        batches = library.batches(population["texts"], per_request)
        random.Random(0).shuffle(batches)  # sorted by length, the first ones would not stand for all
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
    """Call after call until the time is up."""
    texts, read, latencies = 0, 0, []
    began = time.perf_counter()
    while (started := time.perf_counter()) < began + seconds:
        batch = next(batches)
        library.embed(batch.work)
        latencies.append(time.perf_counter() - started)
        texts += len(batch.rows)
        read += sum(tokens[row] for row in batch.rows)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "texts": texts, "tokens": read, "latencies": latencies if library.of_requests else []}


def _vectors(library: Library, texts: Sequence[str]) -> Vectors:
    batches = library.batches(texts, len(texts))
    vectors = np.concatenate([library.embed(batch.work) for batch in batches])
    return vectors[np.argsort([row for batch in batches for row in batch.rows])]


def _by_length(ids: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Rows by length, cut where one more would take a batch over `BATCH_TOKENS`."""
    rows: list[int] = []
    for row in sorted(range(len(ids)), key=lambda row: len(ids[row])):
        if rows and (len(rows) + 1) * len(ids[row]) > BATCH_TOKENS:
            yield rows
            rows = []
        rows.append(row)
    yield rows


def _padded(ids: Sequence[Sequence[int]]) -> Feed:
    """`input_ids`, `attention_mask` and `token_type_ids`, each (N, L)."""
    shape = len(ids), max(map(len, ids))
    padded, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, one in enumerate(ids):
        padded[row, : len(one)], mask[row, : len(one)] = one, 1
    return {"input_ids": padded, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}


def _cut_at(max_length: int, bundle: Path, folder: Path) -> Path:
    """The bundle as fastembed reads one: the length to cut at stands in tokenizer_config.json."""
    for file in ("onnx", "config.json", "tokenizer.json"):
        (folder / file).symlink_to((bundle / file).resolve())
    config = json.loads((bundle / "tokenizer_config.json").read_text())
    config |= {"model_max_length": max_length, "max_length": max_length}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _reply(content: dict[str, Any]) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
