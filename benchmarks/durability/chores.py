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

from benchmarks.durability.copies import Copies
from benchmarks.durability.history import Verdict, body
from benchmarks.durability.jobs import JobFailedError, all_ended
from benchmarks.durability.server import Server
from benchmarks.durability.traffic import Traffic
from benchmarks.durability.uploads import LONG, Uploads

RIVALS = 2
"""Writers of the documents that are uploaded."""


@dataclass
class Chores:
    """Each kind is done again and again on a thread of its own, and what was promised of it kept."""

    copies: Copies
    uploads: Uploads
    verdict: Verdict
    done: Counter[str] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)
    """Corpora whose removal was acknowledged."""
    there: set[str] = field(default_factory=set)
    """Corpora whose creation was, and whose removal was never asked for."""

    @classmethod
    def of(cls, traffic: Traffic, encoders: Sequence[str] = ()) -> Chores:
        """Of a server that has this traffic, too."""
        return cls(Copies(traffic.writers), Uploads(traffic.verdict, encoders), traffic.verdict)

    @contextmanager
    def beside(self, server: Server) -> Iterator[None]:
        """Meanwhile; until the block ends or the server is gone."""
        stop = threading.Event()
        rivals = [self.uploads.rival_writes] * RIVALS
        kinds = [self.come_and_go, self.snapshots, self.uploads.long_uploads, *rivals]
        with ThreadPoolExecutor(len(kinds)) as pool:
            at_work = [pool.submit(self._again, server, kind, stop) for kind in kinds]
            try:
                yield
            finally:
                stop.set()
            for one in at_work:
                one.result()

    def check(self, server: Server) -> None:
        """After a start: what is gone is gone, what is there is there, and jobs go on to their end."""
        with server.client() as client:
            names = {corpus["name"] for corpus in client.get("/corpora").raise_for_status().json()["corpora"]}
            for name in names & self.gone:
                self.verdict.note("back", f"corpus {name} was removed")
            for name in self.there - names:
                self.verdict.note("lost", f"corpus {name}")
            self.uploads.check(client, there=LONG in names)
            all_ended(client)  # whatever the uploads waited for: a snapshot that is being made can't be asked for again
            self.copies.check(client, self.verdict)

    def _again(self, server: Server, chore: Callable[[httpx.Client], None], stop: threading.Event) -> None:
        with server.client() as client:
            while not stop.is_set():
                try:
                    chore(client)
                except httpx.TransportError:
                    return
                except (httpx.HTTPStatusError, JobFailedError) as error:
                    told = error.response.text if isinstance(error, httpx.HTTPStatusError) else ""
                    self.verdict.note("errors", f"{chore.__name__}: {error} {told}"[:600])
                    return
                self.done[chore.__name__] += 1

    def come_and_go(self, client: httpx.Client) -> None:
        """A corpus is made, filled, removed."""
        name = f"scratch-{time.monotonic_ns()}"
        client.put(f"/corpora/{name}", json={"stemming": "porter"}).raise_for_status()
        self.there.add(name)
        documents = {"documents": [body(f"{name}-{i}", 1, name) for i in range(3)]}
        client.post(f"/corpora/{name}/documents", json=documents).raise_for_status()
        self.there.discard(name)  # from here on either is right
        client.delete(f"/corpora/{name}").raise_for_status()
        self.gone.add(name)

    def snapshots(self, client: httpx.Client) -> None:
        """One is made, one restored."""
        self.copies.make(client)
        self.copies.restore(client)
