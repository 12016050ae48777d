"""Concurrent writers and readers on a server. Writes are recorded, and every read is checked against all writes."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.serving.durability.history import Verdict, Writes, body, judge, sort_out
from tests.serving.durability.server import Server

CORPUS = "c"
SLOTS = 24
"""Maximum documents of a writer."""
MOST = 1000
"""Hits to request when all documents are wanted."""
REFUSED = (429, 503, 507)
"""Statuses that mean that nothing was done."""
DIM = 64
"""Width of the fake engine's vectors."""


@dataclass
class Traffic:
    """Traffic on a server, run after run. `verdict` has the errors in its answers."""

    writers: Sequence[Writes]
    verdict: Verdict = field(default_factory=Verdict)
    statuses: Counter[str] = field(default_factory=Counter)
    """Counts of answers, such as `write 200` and `read 503`."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Errors in answers other than 200, without their variable parts."""
    seed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, writers: int, seed: int = 0) -> Traffic:
        """Create writers that have written nothing yet."""
        return cls([Writes(f"w{i}") for i in range(writers)], seed=seed)

    @contextmanager
    def beside(self, server: Server, readers: int) -> Iterator[None]:
        """Run writers and readers during the block. They stop at its end, or when the server is gone."""
        stop = threading.Event()
        self.seed += 1
        with ThreadPoolExecutor(len(self.writers) + readers) as pool:
            at_work = [pool.submit(self._write, server, *one, stop) for one in enumerate(self.writers)]
            at_work += [pool.submit(self._read, server, stop) for _ in range(readers)]
            try:
                yield
            finally:
                stop.set()
            for one in at_work:
                one.result()

    def run(self, server: Server, readers: int, seconds: float) -> None:
        """Run for some seconds, or until the server is gone."""
        ends = time.monotonic() + seconds
        with self.beside(server, readers):
            while time.monotonic() < ends and server.process.poll() is None:
                time.sleep(0.01)

    def since(self, before: Counter[str]) -> dict[str, int]:
        """Return the answers since `statuses` were `before`."""
        return {answer: n - before[answer] for answer, n in sorted(self.statuses.items()) if n > before[answer]}

    def report(self) -> dict[str, Any]:
        """Return figures for the stored result."""
        return {
            "reads judged": self.verdict.reads,
            "examples": self.verdict.examples,
            "answers": dict(sorted(self.statuses.items())),
            "refusals": dict(self.refusals.most_common(8)),
        }

    def hear(self, server: Server) -> None:
        """Note the server's logged errors. There should be none."""
        for complaint in server.complaints():
            self.verdict.note("complaints", complaint)

    def check(self, server: Server) -> None:
        """Check after a start that all views agree and show everything acknowledged. The state then becomes final."""
        with server.client() as client:
            client.put(f"/corpora/{CORPUS}").raise_for_status()
            marks = [writes.acknowledged for writes in self.writers]
            views = {"list": list(listed(client)), "search": _hits(client, {}), "exact": _hits(client, {"exact": True})}
            states = {view: sort_out(documents, self.verdict, view) for view, documents in views.items()}
            for view, state in states.items():
                for stranger in state.keys() - {writes.name for writes in self.writers}:
                    self.verdict.note("phantom", f"{view}: writer {stranger}")
                for writes, mark in zip(self.writers, marks, strict=True):
                    judge(writes, state.get(writes.name, {}), mark, self.verdict, view)
                if state != states["list"]:
                    self.verdict.note("views", f"{view} and list disagree: {_difference(state, states['list'])}")
            documents = client.get(f"/corpora/{CORPUS}").json()["documents"]
            if documents != len(views["list"]):
                self.verdict.note("views", f"{documents} documents, {len(views['list'])} listed")
            for writes in self.writers:
                writes.settle(states["list"].get(writes.name, {}))
                self._check_words(client, writes)

    def _check_words(self, client: httpx.Client, writes: Writes) -> None:
        """Check that a document of the writer is found by its id and by its words."""
        for name, version in list(writes.states[-1].items())[:1]:
            wanted = body(name, version, writes.name)
            answer = client.get(f"/corpora/{CORPUS}/documents/{name}")
            if answer.status_code != 200 or answer.json() != wanted:
                self.verdict.note("lost", f"get: {name}: {answer.text[:200]}")
            found = _hits(client, {"query": f'"{name} v{version}"', "mode": "lexical", "k": 10}, vector=False)
            if [hit["id"] for hit in found] != [name]:
                self.verdict.note("lost", f"words: {name} v{version}: {[hit['id'] for hit in found]}")

    def write(self, server: Server, times: int) -> None:
        """Make writes of the first writer only."""
        rng = random.Random(self.seed)
        with server.client() as client:
            for _ in range(times):
                self._write_once(client, self.writers[0], rng)

    def _write(self, server: Server, number: int, writes: Writes, stop: threading.Event) -> None:
        rng = random.Random(f"{self.seed} {number}")
        with server.client() as client:
            while not stop.is_set():
                try:
                    self._write_once(client, writes, rng)
                except httpx.TransportError:
                    return

    def _write_once(self, client: httpx.Client, writes: Writes, rng: random.Random) -> None:
        changes, ask = _write_of(writes, rng)
        writes.send(changes)
        answer = ask(client)
        if answer.status_code in (200, 204):
            writes.acknowledge()
        else:
            writes.refuse()
        if answer.status_code in REFUSED:
            time.sleep(0.02)
        elif answer.status_code not in (200, 204):
            self.verdict.note("errors", f"{answer.status_code}: {answer.text[:200]}")
        self._count("write", answer)

    def _read(self, server: Server, stop: threading.Event) -> None:
        with server.client() as client:
            for turn in range(1_000_000_000):
                if stop.is_set():
                    return
                marks = [writes.acknowledged for writes in self.writers]
                exact = {"exact": True} if turn % 2 else {}
                try:
                    answer = client.post(f"/corpora/{CORPUS}/search", json=_everything(exact))
                except httpx.TransportError:
                    return
                self._count("read", answer)
                if answer.status_code == 200:
                    with self._lock:
                        found = sort_out(map(_document, answer.json()["hits"]), self.verdict, "reading")
                        for writes, mark in zip(self.writers, marks, strict=True):
                            judge(writes, found.get(writes.name, {}), mark, self.verdict, "reading")

    def _count(self, kind: str, answer: httpx.Response) -> None:
        with self._lock:
            self.statuses[f"{kind} {answer.status_code}"] += 1
            if answer.status_code not in (200, 204):
                self.refusals[f"{answer.status_code} {answer.json().get('error', '')[:160]}"] += 1


def _write_of(
    writes: Writes, rng: random.Random
) -> tuple[dict[str, int | None], Callable[[httpx.Client], httpx.Response]]:
    """Choose the next change, and return it with its request."""
    held, kind = writes.states[-1], rng.random()
    place = f"/corpora/{CORPUS}/documents"
    if held and kind < 0.15:
        name = rng.choice(sorted(held))
        return {name: None}, lambda client: client.delete(f"{place}/{name}")
    if held and kind < 0.25:
        odd = bool(rng.randrange(2))
        gone: dict[str, int | None] = {name: None for name, version in held.items() if version % 2 == odd}
        where = {"filter": {"writer": writes.name, "odd": odd}}
        return gone, lambda client: client.request("DELETE", place, json=where)
    names = rng.sample(range(SLOTS), rng.choice((1, 1, 2, 3, 8)))
    changes = {f"{writes.name}-{name}": writes.next_version() for name in names}
    documents = {"documents": [body(name, version, writes.name) for name, version in changes.items()]}
    return dict(changes), lambda client: client.post(place, json=documents)


def listed(client: httpx.Client, corpus: str = CORPUS) -> Iterator[dict[str, Any]]:
    """Yield every document, page by page."""
    cursor: dict[str, Any] = {}
    while True:
        page = client.get(f"/corpora/{corpus}/documents", params={"limit": 1000, **cursor}).raise_for_status().json()
        yield from map(_document, page["documents"])
        if page.get("cursor") is None:
            return
        cursor = {"cursor": page["cursor"]}


def _everything(more: dict[str, Any]) -> dict[str, Any]:
    return {"vector": [1.0] * DIM, "k": MOST, **more}


def _hits(client: httpx.Client, more: dict[str, Any], *, vector: bool = True) -> list[dict[str, Any]]:
    asked = _everything(more) if vector else more
    answer = client.post(f"/corpora/{CORPUS}/search", json=asked).raise_for_status()
    return [_document(hit) for hit in answer.json()["hits"]]


def _document(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("id", "text", "metadata")}


def _difference(a: dict[str, Any], b: dict[str, Any]) -> str:
    return "; ".join(
        f"{name}: {a.get(name)} and {b.get(name)}" for name in a.keys() | b.keys() if a.get(name) != b.get(name)
    )
