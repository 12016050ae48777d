"""Work beside documents: creation and removal of corpora, long uploads, re-embedding, snapshots."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.serving.durability.history import State, Verdict, Writes, body, sort_out
from tests.serving.durability.server import JobFailedError, Server, all_ended, ended, started
from tests.serving.durability.traffic import CORPUS, Traffic, listed
from tests.serving.durability.uploads import LONG, Uploads

COPY = "copy"
"""Corpus that snapshots are restored to."""
KEPT = 4
"""Number of snapshots kept."""
RIVALS = 2
"""Number of concurrent writers of the uploaded documents."""
Moment = Mapping[str, Sequence[State]]
"""Possible states of each writer in a snapshot."""


@dataclass
class Copies:
    """Acknowledged snapshots, with those that the copy may contain."""

    writers: Sequence[Writes]
    made: dict[str, Moment] = field(default_factory=dict)
    restored: list[str] = field(default_factory=list)
    """Ids of the last acknowledged restored snapshot, if any, and of those requested since."""
    there: bool = False
    """True once a restore was acknowledged. From then on the copy always exists."""
    seed: int = 0

    def make(self, client: httpx.Client) -> None:
        """Make one more snapshot, and delete the oldest."""
        marks = [writes.acknowledged for writes in self.writers]
        job = ended(client, started(client.post(f"/corpora/{CORPUS}/snapshots")))
        moment = {writes.name: list(writes.possible(mark)) for writes, mark in zip(self.writers, marks, strict=True)}
        self.made[job["result"]["id"]] = moment
        while len(self.made) > KEPT:
            oldest = next(one for one in self.made if one not in self.restored)
            del self.made[oldest]
            client.delete(f"/corpora/{CORPUS}/snapshots/{oldest}").raise_for_status()

    def restore(self, client: httpx.Client) -> None:
        """Restore one snapshot over the previous copy."""
        if self.made:
            self.seed += 1
            chosen = random.Random(self.seed).choice(list(self.made))
            self.restored.append(chosen)
            asked = {"snapshot": chosen, "of": CORPUS}
            ended(client, started(client.put(f"/corpora/{COPY}/restore", json=asked)))
            self.restored, self.there = [chosen], True

    def check(self, client: httpx.Client, verdict: Verdict) -> None:
        """Check that acknowledged snapshots exist, and that the copy is complete and one of the possible ones."""
        there = client.get(f"/corpora/{CORPUS}/snapshots").raise_for_status().json()["snapshots"]
        for lost in self.made.keys() - {one["id"] for one in there}:
            verdict.note("lost", f"snapshot {lost}")
        names = {corpus["name"] for corpus in client.get("/corpora").json()["corpora"]}
        if COPY not in names:
            if self.there:
                verdict.note("lost", f"corpus {COPY}")
            return
        found = sort_out(listed(client, COPY), verdict, COPY)
        verdict.reads += 1
        if not any(self._is(self.made[one], found) for one in self.restored):
            verdict.note("in part", f"{COPY} is none of {self.restored}: {str(found)[:300]}")

    def _is(self, moment: Moment, found: Mapping[str, State]) -> bool:
        return all(found.get(writer, {}) in states for writer, states in moment.items())


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
