"""Speed of an ingestion job, which reads, embeds and stores texts, compared with requests and the engine alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from itertools import count, cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.interleave import interleaved
from benchmarks.serving.client import PATIENCE, ReplyError, Sample
from benchmarks.serving.contestants import BUNDLE, OURS, Contestant, Server, Turn, specs, started
from benchmarks.serving.loads import LOADS, Population, populations, requests
from benchmarks.serving.processes import cpu_seconds
from models.bundle import bundle
from models.bundle.tokenizer import Tokenizer

TEXTS = 8000
"""Number of texts of the job. Their lengths are distributed as in the population `mixed`."""
ROUNDS, SECONDS = 5, 6.0
"""Number of rounds, and seconds of each turn except the job's turn. Pending requests are completed."""
BULK = LOADS["bulk"]


class Taken(NamedTuple):
    """The measurements of one turn."""

    rate: float
    """Texts per second."""
    cpu: float
    """CPU seconds per text of the contestant's processes."""


def measure(texts: int = TEXTS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return medians over rounds.

    In each round, each contestant has one turn, in random order. `job` is one upload of NDJSON into a new corpus, until
    its last document is confirmed. `requests` are embedding requests of 2,000 texts each, one after another. `bare` is
    the runtime alone, on texts that were tokenised and sorted by length beforehand.
    """
    source = bundle.load(BUNDLE)
    tokenizer = Tokenizer(source.tokenizer_file, max_length=source.manifest.max_length)
    mixed = populations(tokenizer, mixed=texts)["mixed"]
    with _started(OURS, mixed, tokenizer.max_length) as ours:
        assert isinstance(ours, Server), "our own server is used over HTTP"
        about = ours.about()
        with _started(f"bare_{about['engine']}", mixed, tokenizer.max_length) as bare:
            asked = cycle(requests(mixed, BULK.per_request))
            numbers = count()
            ways = {
                "job": partial(_taken, ours.pid, lambda: _job(ours, mixed, f"upload-{next(numbers)}")),
                "requests": partial(_taken, ours.pid, lambda: ours.take(Turn(BULK, asked, SECONDS))),
                "bare": partial(_taken, bare.pid, lambda: bare.take(Turn(BULK, asked, SECONDS))),
            }
            taken = interleaved(ways, rounds, after=_show_last)
    return {"protocol": measure.__doc__, "texts": texts, "rounds": rounds, **about, "figures": _figures(taken)}


@contextmanager
def _started(name: str, mixed: Population, max_length: int) -> Iterator[Contestant]:
    with (
        TemporaryDirectory() as cache,
        started(specs()[name], {BULK.texts: mixed}, max_length, mixed.texts[0], Path(cache)) as one,
    ):
        yield one


def _job(server: Server, mixed: Population, corpus: str) -> Sample:
    """Upload all texts as a job, follow the job's events until it has ended, and return the measurements."""
    body = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in mixed.texts)
    ask = partial(_answered, server)
    ask("PUT", f"/corpora/{corpus}", b"{}", "application/json")
    began = perf_counter()
    job = json.loads(ask("POST", f"/corpora/{corpus}/documents", body, "application/x-ndjson"))
    *_, last = ask("GET", f"/jobs/{job['id']}/events").split(b"data: ")
    seconds, ended = perf_counter() - began, json.loads(last)
    if ended["state"] != "succeeded" or ended["done"] != len(mixed.texts):
        raise ReplyError(f"the job has ended with {ended}")
    ask("DELETE", f"/corpora/{corpus}")
    return Sample(seconds, len(mixed.texts), sum(mixed.tokens))


def _answered(server: Server, method: str, path: str, body: bytes | None = None, media_type: str = "") -> bytes:
    with closing(HTTPConnection(server.address.host, server.address.port, timeout=PATIENCE)) as connection:
        connection.request(method, path, body, {"content-type": media_type} if media_type else {})
        reply = connection.getresponse()
        content = reply.read()
    if reply.status >= 400:
        raise ReplyError(f"{method} {path}: {reply.status} {content[:300].decode(errors='replace')}")
    return content


def _taken(pid: int, take: Callable[[], Sample]) -> Taken:
    before = cpu_seconds(pid)
    sample = take()
    return Taken(sample.texts / sample.seconds, (cpu_seconds(pid) - before) / sample.texts)


def _show_last(taken: dict[str, list[Taken]]) -> None:
    print("  ", {name: round(turns[-1].rate) for name, turns in taken.items()}, flush=True)


def _figures(taken: dict[str, list[Taken]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "texts_per_s": round(median(turn.rate for turn in turns)),
            "job_times_it": round(median(job.rate / one.rate for job, one in zip(taken["job"], turns, strict=True)), 3),
            "cpu_ms_per_text": round(1e3 * median(turn.cpu for turn in turns), 3),
        }
        for name, turns in taken.items()
    }
