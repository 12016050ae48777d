"""A random walk over the server, with restarts, compared with a plain dict as the model."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from benchmarks.stress.trial import Bound
from serving.inference.fake_engine import FakeEngine
from tests.serving.durability.history import Outcome
from tests.serving.durability.server import serving
from tests.serving.durability.traffic import CORPUS, DIM, MOST, listed

QUERY = "query: "
"""Prefix that the fake bundle adds to queries. Documents have none."""
STEPS = 100
"""Number of steps in a walk."""
WORDS = ("river", "rivers", "stone", "paper", "music", "Zürich", "one", "two")
NAMES = st.sampled_from([f"d{i}" for i in range(12)])
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
METADATA = st.fixed_dictionaries({}, optional={"n": st.integers(0, 3), "tag": st.sampled_from(("a", "b"))})
STEMMINGS = st.sampled_from(("none", "porter"))
BATCHES = st.dictionaries(NAMES, st.tuples(TEXTS, METADATA), min_size=1, max_size=4)


class Walk(RuleBasedStateMachine):
    """A random walk on one corpus. The dict has text and metadata by id, in the order of their last write."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp())
        self.held: dict[str, tuple[str, dict[str, Any]]] = {}
        self.engine = FakeEngine()
        self.running = ExitStack()

    @initialize(stemming=STEMMINGS)
    def start(self, stemming: str) -> None:
        """Start with an empty corpus."""
        self._open()
        assert self.client.put(f"/corpora/{CORPUS}", json={"stemming": stemming}).status_code == 201
        self.stemming = stemming

    @rule(batch=BATCHES)
    def put(self, batch: dict[str, tuple[str, dict[str, Any]]]) -> None:
        """Write new documents and new versions, all or none."""
        documents = [{"id": name, "text": text, "metadata": more} for name, (text, more) in batch.items()]
        answer = self.client.post(f"/corpora/{CORPUS}/documents", json={"documents": documents})
        assert answer.status_code == 200, answer.text
        for name in batch:
            self.held.pop(name, None)
        self.held |= batch

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        """Delete a document that may not exist."""
        answer = self.client.delete(f"/corpora/{CORPUS}/documents/{name}")
        assert answer.status_code == (204 if name in self.held else 404), answer.text
        self.held.pop(name, None)

    @rule(n=st.integers(0, 3))
    def delete_where(self, n: int) -> None:
        """Delete all documents that match a filter."""
        answer = self.client.request("DELETE", f"/corpora/{CORPUS}/documents", json={"filter": {"n": n}})
        assert answer.status_code == 200, answer.text
        self.held = {name: document for name, document in self.held.items() if document[1].get("n") != n}

    @rule(name=NAMES, metadata=METADATA, gone=st.booleans())
    def patch(self, name: str, metadata: dict[str, Any], gone: bool) -> None:
        """Merge metadata into a document that may not exist. With `gone`, also remove its tag."""
        merge = metadata | ({"tag": None} if gone else {})
        answer = self.client.patch(f"/corpora/{CORPUS}/documents/{name}", json={"metadata": merge})
        assert answer.status_code == (200 if name in self.held else 404), answer.text
        if name in self.held:
            text, before = self.held[name]
            self.held[name] = text, {key: value for key, value in (before | merge).items() if value is not None}

    @rule(n=st.integers(0, 3), to=st.integers(0, 3))
    def patch_where(self, n: int, to: int) -> None:
        """Merge metadata into all documents that match a filter."""
        asked = {"metadata": {"n": to}, "filter": {"n": n}}
        answer = self.client.patch(f"/corpora/{CORPUS}/documents", json=asked)
        fits = [name for name, (_, more) in self.held.items() if more.get("n") == n]
        assert (answer.status_code, answer.json()["patched"]) == (200, len(fits)), answer.text
        for name in fits:
            text, before = self.held[name]
            self.held[name] = text, before | {"n": to}

    @rule(text=TEXTS, k=st.integers(1, 5), tag=st.sampled_from((None, "a", "b")), exact=st.booleans())
    def search(self, text: str, k: int, tag: str | None, exact: bool) -> None:
        """Check that hits and scores equal those of brute force."""
        asked = {"query": text, "k": k, "exact": exact} | ({"filter": {"tag": tag}} if tag else {})
        hits = self.client.post(f"/corpora/{CORPUS}/search", json=asked).raise_for_status().json()["hits"]
        fits = {name: text for name, (text, more) in self.held.items() if tag is None or more.get("tag") == tag}
        scores = dict(zip(fits, self._embedded(list(fits.values())) @ self._embedded([QUERY + text])[0], strict=True))
        best = sorted(scores.values(), reverse=True)[:k]
        assert np.allclose([hit["score"] for hit in hits], best, atol=2e-6)
        assert len({hit["id"] for hit in hits}) == len(hits)
        for hit in hits:
            assert abs(scores[hit["id"]] - hit["score"]) < 2e-6
            assert (hit["text"], hit["metadata"]) == self.held[hit["id"]]

    @rule(stemming=STEMMINGS)
    def stem(self, stemming: str) -> None:
        """Change the stemming, which is possible only without documents."""
        answer = self.client.put(f"/corpora/{CORPUS}", json={"stemming": stemming})
        if answer.status_code == 200:
            self.stemming = stemming
        else:
            assert answer.status_code == 409 and self.held and self.stemming != stemming, answer.text
        assert self.client.get(f"/corpora/{CORPUS}").json()["stemming"] == self.stemming

    @rule(word=st.sampled_from(WORDS))
    def words(self, word: str) -> None:
        """Check that a lexical search finds every document with the word or its stem."""
        same = {"river", "rivers"} if self.stemming == "porter" and word.startswith("river") else {word}
        asked = {"query": word, "mode": "lexical", "k": MOST}
        hits = self.client.post(f"/corpora/{CORPUS}/search", json=asked).raise_for_status().json()["hits"]
        assert {hit["id"] for hit in hits} == {name for name, (text, _) in self.held.items() if same & {*text.split()}}

    @rule(now=st.sampled_from((*[False] * 9, True)))
    def restart(self, now: bool) -> None:
        """Restart as by SIGTERM, one time in ten, because restarts take longest."""
        if now:
            self.running.close()
            self._open()
        self.look()

    def teardown(self) -> None:
        """Clean up after the last step."""
        self.running.close()
        shutil.rmtree(self.folder)

    def _open(self) -> None:
        self.client = self.running.enter_context(serving(self.folder))

    @rule()
    def look(self) -> None:
        """Check the list in its order, and a search for everything."""
        documents = {one["id"]: (one["text"], one["metadata"]) for one in listed(self.client)}
        assert list(documents.items()) == list(self.held.items())
        everything = {"vector": [1.0] * DIM, "k": MOST}
        hits = self.client.post(f"/corpora/{CORPUS}/search", json=everything).raise_for_status().json()["hits"]
        assert {hit["id"]: (hit["text"], hit["metadata"]) for hit in hits} == self.held
        assert len(hits) == len(self.held)

    def _embedded(self, texts: list[str]) -> Any:
        return self.engine.embed(self.engine.tokenize(texts, "right")).vectors if texts else np.empty((0, DIM))


def walk(operations: int) -> None:
    """Run a number of steps in walks of `STEPS`.

    Raises:
        AssertionError: the server and the dict differ; the message is the shortest walk that shows it.
    """
    run_state_machine_as_test(
        Walk,
        settings=settings(
            max_examples=max(1, operations // STEPS),
            stateful_step_count=min(STEPS, operations),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def model(folder: Path, operations: int) -> Outcome:
    """Run operations of a random walk with restarts against a dict, and exact search against brute force."""
    try:
        walk(operations)
    except AssertionError as error:
        return Outcome(
            [Bound("walks that differ", 1, 0)], {"difference": str(error), "notes": getattr(error, "__notes__", [])}
        )
    return Outcome([Bound("walks that differ", 0, 0)])
