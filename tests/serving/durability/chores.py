"""Work beside documents: creation and removal of corpora, long uploads, re-embedding, snapshots."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.serving.durability.copies import Copies
from tests.serving.durability.history import Verdict, body
from tests.serving.durability.jobs import JobFailedError, all_ended
from tests.serving.durability.server import Server
from tests.serving.durability.traffic import Traffic
from tests.serving.durability.uploads import LONG, Uploads

RIVALS = 2
"""Number of concurrent writers of the uploaded documents."""


@dataclass
class Chores:
    """Kinds of work that repeat on their own threads, with a record of acknowledged results."""

    copies: Copies
    uploads: Uploads
    verdict: Verdict
    done: Counter[str] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)
    """Corpora whose removal was acknowledged."""
    there: set[str] = field(default_factory=set)
    """Corpora whose creation was acknowledged and whose removal was never requested."""

    @classmethod
    def of(cls, traffic: Traffic, encoders: Sequence[str] = ()) -> Chores:
        """Create the work for a server with this traffic."""
        return cls(Copies(traffic.writers), Uploads(traffic.verdict, encoders), traffic.verdict)

    @contextmanager
    def beside(self, server: Server) -> Iterator[None]:
        """Do the work until the block ends or the server is gone."""
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
        """Check after a start that removed corpora are gone, others exist, and jobs finish."""
        with server.client() as client:
            names = {corpus["name"] for corpus in client.get("/corpora").raise_for_status().json()["corpora"]}
            for name in names & self.gone:
                self.verdict.note("back", f"corpus {name} was removed")
            for name in self.there - names:
                self.verdict.note("lost", f"corpus {name}")
            self.uploads.check(client, there=LONG in names)
            all_ended(client)  # All jobs must end first, because a snapshot in progress can't be requested again.
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
        """Create, fill and remove a corpus."""
        name = f"scratch-{time.monotonic_ns()}"
        client.put(f"/corpora/{name}", json={"stemming": "porter"}).raise_for_status()
        self.there.add(name)
        documents = {"documents": [body(f"{name}-{i}", 1, name) for i in range(3)]}
        client.post(f"/corpora/{name}/documents", json=documents).raise_for_status()
        self.there.discard(name)  # From here on, both its presence and its absence are right.
        client.delete(f"/corpora/{name}").raise_for_status()
        self.gone.add(name)

    def snapshots(self, client: httpx.Client) -> None:
        """Make one snapshot and restore one."""
        self.copies.make(client)
        self.copies.restore(client)
