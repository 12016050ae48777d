"""What is asked of a server beside documents: corpora that come and go, long uploads, other encoders, snapshots."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import numpy as np
import orjson

from benchmarks.durability.copies import Copies
from benchmarks.durability.fakes import FINGERPRINTS, embedded
from benchmarks.durability.history import Verdict, Writes, body, sort_out
from benchmarks.durability.jobs import JobFailedError, all_ended, ended, started
from benchmarks.durability.server import Server
from benchmarks.durability.traffic import DIM, MOST, listed

LONG = "long"
"""The corpus of long uploads, which moves from encoder to encoder."""
DOCUMENTS = 600
"""Of a long upload: three commits at least, so that it can be cut in the middle."""


@dataclass
class Chores:
    """Each kind is done again and again on a thread of its own, and what was promised of it kept."""

    copies: Copies
    done: Counter[str] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)
    """Corpora whose removal was acknowledged."""
    there: set[str] = field(default_factory=set)
    """Corpora whose creation was, and whose removal was never asked for."""
    long: Writes = field(default_factory=lambda: Writes("long"))
    job: str | None = None
    """The upload that was accepted last, if it has not been seen to end."""
    encoders: Sequence[str] = ()
    """Those that the long corpus moves between."""

    @classmethod
    def beside_writers(cls, writers: Sequence[Writes], encoders: Sequence[str] = ()) -> Chores:
        """Of a server that these write to."""
        return cls(Copies(writers), encoders=encoders)

    @contextmanager
    def beside(self, server: Server, verdict: Verdict) -> Iterator[None]:
        """Meanwhile; until the block ends or the server is gone."""
        stop = threading.Event()
        kinds: list[Callable[[httpx.Client], None]] = [self.come_and_go, self.long_uploads, self.snapshots]
        with ThreadPoolExecutor(len(kinds)) as pool:
            at_work = [pool.submit(self._again, server, kind, stop, verdict) for kind in kinds]
            try:
                yield
            finally:
                stop.set()
            for one in at_work:
                one.result()

    def check(self, server: Server, verdict: Verdict) -> None:
        """After a start: what is gone is gone, what is there is there, and jobs go on to their end."""
        with server.client() as client:
            names = {corpus["name"] for corpus in client.get("/corpora").raise_for_status().json()["corpora"]}
            for name in names & self.gone:
                verdict.note("back", f"corpus {name} was removed")
            for name in self.there - names:
                verdict.note("lost", f"corpus {name}")
            self._check_long(client, verdict, there=LONG in names)
            self.copies.check(client, verdict)

    def _again(
        self, server: Server, chore: Callable[[httpx.Client], None], stop: threading.Event, verdict: Verdict
    ) -> None:
        with server.client() as client:
            while not stop.is_set():
                try:
                    chore(client)
                except httpx.TransportError:
                    return
                except (httpx.HTTPStatusError, JobFailedError) as error:
                    told = error.response.text if isinstance(error, httpx.HTTPStatusError) else ""
                    verdict.note("errors", f"{chore.__name__}: {error} {told}"[:600])
                    return
                self.done[chore.__name__] += 1

    def come_and_go(self, client: httpx.Client) -> None:
        """A corpus is made, filled, removed."""
        name = f"scratch-{time.monotonic_ns()}"
        client.put(f"/corpora/{name}").raise_for_status()
        self.there.add(name)
        documents = {"documents": [body(f"{name}-{i}", 1, name) for i in range(3)]}
        client.post(f"/corpora/{name}/documents", json=documents).raise_for_status()
        self.there.discard(name)  # from here on either is right
        client.delete(f"/corpora/{name}").raise_for_status()
        self.gone.add(name)

    def long_uploads(self, client: httpx.Client) -> None:
        """A job that writes new versions of many documents; then another encoder embeds them, if there is one."""
        client.put(f"/corpora/{LONG}").raise_for_status()
        version = self.long.next_version()
        self.long.send({f"long-{i}": version for i in range(DOCUMENTS)})
        lines = b"\n".join(orjson.dumps(body(f"long-{i}", version, "long")) for i in range(DOCUMENTS))
        kind = {"content-type": "application/x-ndjson"}
        path = f"/corpora/{LONG}/documents?async=true"
        self.job = started(client.post(path, content=lines, headers=kind))
        ended(client, self.job)
        self.long.acknowledge()
        self.job = None
        if self.encoders:
            model = self.encoders[version % len(self.encoders)]
            ended(client, started(client.post(f"/corpora/{LONG}/reembed", json={"model": model})))
            if (served := client.get(f"/corpora/{LONG}").json()["fingerprint"]) != FINGERPRINTS[model]:
                raise JobFailedError(f"embedded again by {model}, but is of {served}")

    def snapshots(self, client: httpx.Client) -> None:
        """One is made, one restored."""
        self.copies.make(client)
        self.copies.restore(client)

    def _check_long(self, client: httpx.Client, verdict: Verdict, *, there: bool) -> None:
        if not there:
            if self.long.acknowledged or self.job:
                verdict.note("lost", f"corpus {LONG}")
            return
        self._judge(client, verdict)
        if self.job:
            try:
                ended(client, self.job)
                self.long.acknowledge()
            except (httpx.HTTPStatusError, JobFailedError) as error:
                verdict.note("lost", f"job {self.job}: {error}")
            self.job = None
        all_ended(client)
        self.long.settle(self._judge(client, verdict))
        self._check_vectors(client, verdict)

    def _judge(self, client: httpx.Client, verdict: Verdict) -> dict[str, int]:
        """A long upload that is not through may be there in part."""
        possible = self.long.possible(self.long.acknowledged)
        found = sort_out(listed(client, LONG), verdict, "long").get("long", {})
        for name in found.keys() | possible[0].keys():
            allowed = {state.get(name) for state in possible}
            if found.get(name) not in allowed:
                verdict.note("lost", f"{LONG}/{name} is {found.get(name)}, may be {sorted(map(str, allowed))}")
        verdict.reads += 1
        return found

    def _check_vectors(self, client: httpx.Client, verdict: Verdict) -> None:
        """All are of one encoder, the one that the corpus says."""
        fingerprint = client.get(f"/corpora/{LONG}").json()["fingerprint"]
        asked = {"vector": [1.0] * DIM, "k": MOST, "with_vector": True}
        hits = client.post(f"/corpora/{LONG}/search", json=asked).raise_for_status().json()["hits"]
        vectors = np.array([hit["vector"] for hit in hits]).reshape(len(hits), DIM)
        if not np.allclose(vectors, embedded([hit["text"] for hit in hits], fingerprint), atol=1e-5):
            verdict.note("torn", f"{LONG}: vectors that are not of {fingerprint}")
