"""Every store is a dictionary; the one on disk is the same dictionary after it is opened again."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from serving.corpora.filter_language import compile_filter
from serving.corpora.ports import Store
from serving.corpora.stores import STORES
from serving.corpora.stores.connections import MOST, OpenFiles
from serving.corpora.stores.corpus_file import Shared
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import (
    Change,
    Changes,
    Chunking,
    Content,
    Corpus,
    Document,
    Patch,
    Removal,
    Span,
    Stemming,
    WordSettings,
)
from serving.errors import Conflict, Invalid
from tests.conftest import soon
from tests.serving.corpora.stores.contents import DIMS, Row, content, cut, vector, vectors

Asked = Content | Removal | Patch
WORDS = ["river", "rivers", "bank", "Zürich", "of", "2024"]
ids = st.sampled_from(["a", "b", "c", "d/e", "é"])
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=8
)
metadata = st.dictionaries(st.sampled_from("xyz"), st.none() | st.booleans() | st.integers(-3, 3) | texts, max_size=3)
rows = st.lists(st.tuples(ids, texts, metadata), min_size=1, max_size=4, unique_by=lambda row: row[0])
chunkings = st.none() | st.builds(Chunking, st.integers(1, 3), st.just(0))
jobs = st.sampled_from(["j", "k"])
stemmings: st.SearchStrategy[Stemming | None] = st.sampled_from([None, "none", "porter"])
fields = st.none() | st.dictionaries(st.sampled_from("xyz"), st.sampled_from([0.5, 1.0, 2.0]), max_size=2)
expiries = st.sampled_from(["kept", None, 2**55])
conditions = st.dictionaries(st.sampled_from("xyz"), st.none() | st.booleans() | st.integers(-3, 3), max_size=2)


class Entry(NamedTuple):
    """What the dictionary knows of a document."""

    document: Document
    chunking: Chunking | None
    keys: list[int]

    @property
    def spans(self) -> list[Span]:
        return cut(self.document.text, self.chunking)

    @property
    def parts(self) -> list[str]:
        return [self.document.text[start:end] for start, end in self.spans]


class AsADictionary(RuleBasedStateMachine):
    """One corpus against a plain dict; the order of keys is the order of writing."""

    open: Callable[[Path], Store]
    persistent: bool

    @initialize(stemming=stemmings)
    def start(self, stemming: Stemming | None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.store = type(self).open(self.path)
        self.store.create(Corpus("c", stemming=stemming))
        self.fingerprint = "f"
        self.held: dict[str, Entry] = {}
        self.last_key = 0
        self.tombstones: set[int] = set()
        self.fresh: dict[int, str] = {}
        self.stemming = stemming or "none"
        self.fields: dict[str, float] = {}
        self.accepted: dict[str, set[str]] = {}
        """Of each upload the ids that overtook it."""

    @property
    def path(self) -> Path:
        return Path(self.folder.name)

    @rule(
        wanted=st.lists(
            st.tuples(rows, chunkings, st.none() | jobs)
            | st.sets(ids)
            | st.builds(Patch, st.lists(ids, max_size=3, unique=True), st.builds(Changes, metadata, expiries))
            | st.sampled_from(["other", "twice"]),
            max_size=4,
        )
    )
    def write(self, wanted: list[Any]) -> None:
        writes = [self._write(one) for one in wanted]
        for asked, outcome in zip(writes, self.store.write("c", writes), strict=True):
            if refused := self._refused(asked):
                assert isinstance(outcome, refused), "a write that fails harms no other"
                continue
            assert isinstance(outcome, Change)
            write = self._stays(asked)
            gone = set[int]()
            if not isinstance(write, Patch):
                ids = write.ids if isinstance(write, Removal) else [document.id for document in write.documents]
                gone = {key for name in ids if name in self.held for key in self.held.pop(name).keys}
            assert set(outcome.removed.tolist()) == gone
            assert len(outcome.removed) == len(gone)
            self.tombstones |= gone
            self._take(write, outcome.added.tolist())

    def _write(self, wanted: Any) -> Asked:
        if wanted == "other":
            return content([("z", "z", {})], "other")
        if wanted == "twice":
            return content([("z", "z", {}), ("z", "y", {})], self.fingerprint)
        if isinstance(wanted, Patch):
            return wanted
        if isinstance(wanted, set):
            return Removal(sorted(wanted))
        return replace(content(wanted[0], self.fingerprint, wanted[1]), job=wanted[2])

    def _stays(self, write: Asked) -> Asked:
        """Of a job what nothing has overtaken; all else overtakes those that are accepted."""
        if isinstance(write, Content) and write.job:
            gone = self.accepted.get(write.job, set())
            rows = [(one.id, one.text, dict(one.metadata)) for one in write.documents if one.id not in gone]
            return content(rows, write.fingerprint, write.chunking)
        for gone in self.accepted.values():
            gone.update([one.id for one in write.documents] if isinstance(write, Content) else write.ids)
        return write

    @rule(job=jobs)
    def accept(self, job: str) -> None:
        self.store.accept("c", job)
        self.accepted.setdefault(job, set())

    @rule(job=jobs)
    def release(self, job: str) -> None:
        self.store.release("c", job)
        self.accepted.pop(job, None)

    def _refused(self, write: Asked) -> type[Exception] | None:
        if not isinstance(write, Content):
            return None
        if len({document.id for document in write.documents}) < len(write.documents):
            return Invalid
        return Conflict if self.held and write.fingerprint != self.fingerprint else None

    def _take(self, write: Asked, added: list[int]) -> None:
        if isinstance(write, Patch):
            for name in {*write.ids} & self.held.keys():
                entry = self.held[name]
                both = {**entry.document.metadata, **write.changes.metadata}
                merged = {key: value for key, value in both.items() if write.changes.metadata.get(key, 0) is not None}
                document = entry.document._replace(metadata=merged)
                if write.changes.expires_at != "kept":
                    document = document._replace(expires_at=write.changes.expires_at)
                self.held[name] = entry._replace(document=document)
        if not isinstance(write, Content):
            assert added == []
            return
        self.fingerprint = write.fingerprint
        assert sorted(added) == added
        assert not added or added[0] > self.last_key
        self.last_key = max([self.last_key, *added])
        for document in write.documents:
            own, added = (
                added[: len(cut(document.text, write.chunking))],
                added[len(cut(document.text, write.chunking)) :],
            )
            self.held[document.id] = Entry(document, write.chunking, own)
        assert added == []

    @rule(limit=st.integers(1, 9))
    def embed_anew(self, limit: int) -> None:
        fingerprint = "g" if self.fingerprint == "f" else "f"
        stale = self.store.stale("c", fingerprint, limit)
        texts = {key: part for entry in self.held.values() for key, part in zip(entry.keys, entry.parts, strict=True)}
        self.fresh = {key: text for key, text in self.fresh.items() if key in texts}
        missing = [(key, text) for key, text in sorted(texts.items()) if key not in self.fresh]
        assert set(stale) <= set(missing)
        assert len(stale) == min(limit, len(missing))
        keys, parts = [key for key, _ in stale], [text for _, text in stale]
        self.store.refresh("c", fingerprint, np.array([*keys, 10**6]), vectors(fingerprint, [*parts, "gone"]))
        self.fresh |= dict(stale)
        swapped = self.store.swap("c", fingerprint)
        assert swapped == (len(missing) <= limit)
        if swapped:
            assert self.store.swap("c", fingerprint), "it was done"
            assert self.store.stale("c", fingerprint, 1) == []
            self.fingerprint, self.fresh = fingerprint, {}

    @rule(stemming=stemmings, fields=fields)
    def describe(self, stemming: Stemming | None, fields: dict[str, float] | None) -> None:
        wanted = Corpus("c", description=f"with {stemming}", stemming=stemming, words=WordSettings(fields=fields))
        if self.held and stemming not in (None, self.stemming):
            before = self.store.corpus("c")
            with pytest.raises(Conflict):
                self.store.create(wanted)
            assert self.store.corpus("c") == before, "all or none"
        else:
            assert not self.store.create(wanted)
            assert self.store.corpus("c").description == wanted.description
            self.stemming = stemming or self.stemming
            self.fields = self.fields if fields is None else fields
            assert self.store.corpus("c").words.fields in (self.fields, None)

    @rule(count=st.integers(0, 9))
    def bury(self, count: int) -> None:
        some = set(sorted(self.tombstones)[:count])
        self.store.bury("c", np.array(sorted(some), dtype=np.int64))
        self.tombstones -= some

    @rule()
    def reopen(self) -> None:
        if self.persistent:
            self.store.close()
            self.store = type(self).open(self.path)

    @rule(between=rows)
    def go_back(self, between: list[Row]) -> None:
        generation = self.store.corpus("c").generation
        corpus, size = self.store.copy("c", self.path / "copy")
        assert (corpus, size.documents) == (self.store.corpus("c"), len(self.held))
        self.store.write("c", [content(between, self.fingerprint), Removal(list(self.held))])
        self.store.adopt("c", self.path / "copy")
        self.accepted = {job: set() for job in self.accepted}
        assert self.store.corpus("c").generation != generation

    @rule(condition=conditions)
    def filtered(self, condition: dict[str, Any]) -> None:
        where = compile_filter(condition)
        matching = [entry for entry in self.held.values() if where.matches(entry.document.metadata)]
        assert self.store.matching("c", where).tolist() == sorted(key for entry in matching for key in entry.keys)
        assert self.store.ids_matching("c", where) == [entry.document.id for entry in matching]
        page = self.store.page("c", 0, 2, where)
        assert [document for _, document in page.rows] == [entry.document for entry in matching[:2]]
        assert (page.more, page.total) == (len(matching) > 2, len(matching))
        rest = self.store.page("c", page.rows[-1][0] if page.rows else 0, 100, where).rows
        assert [document for _, document in rest] == [entry.document for entry in matching[2:]]

    @rule(word=st.sampled_from(WORDS), condition=st.none() | conditions)
    def words(self, word: str, condition: dict[str, Any] | None) -> None:
        where = None if condition is None else compile_filter(condition)
        found = self.store.words("c", word, 1000, where)
        same = {"river", "rivers"} if self.stemming == "porter" and word in ("river", "rivers") else {word}
        assert sorted(found.keys.tolist()) == [
            key
            for entry in self.held.values()
            if where is None or where.matches(entry.document.metadata)
            for key, part in zip(entry.keys, entry.parts, strict=True)
            if same & {*re.findall(r"\w+", part), *self._words_in_fields(entry)}
        ]

    def _words_in_fields(self, entry: Entry) -> list[str]:
        values = (entry.document.metadata.get(field) for field in self.fields)
        return [word for value in values if isinstance(value, str) for word in re.findall(r"\w+", value)]

    @rule(asked=rows, chunking=chunkings)
    def embedded(self, asked: list[Row], chunking: Chunking | None) -> None:
        texts = [text for _, text, _ in asked] + [entry.document.text for entry in self.held.values()]
        known = {entry.document.text for entry in self.held.values() if entry.chunking == chunking}
        assert self.store.embedded("c", texts, chunking, "another") == [None] * len(texts)
        for text, held in zip(texts, self.store.embedded("c", texts, chunking, self.fingerprint), strict=True):
            assert (held is not None) == (text in known)
            if held is not None:
                spans = cut(text, chunking)
                assert held.spans == (spans if chunking else None)
                assert held.vectors.tolist() == vectors(self.fingerprint, [text[a:b] for a, b in spans]).tolist()

    @invariant()
    def same(self) -> None:
        page, _, total = self.store.page("c", 0, 100)
        assert total == len(self.held)
        assert [document for _, document in page] == [entry.document for entry in self.held.values()]
        assert self.store.page("c", page[0][0] if page else 0, 1).rows == page[1:2]
        assert [self.store.document("c", name) for name in self.held] == [document for _, document in page]
        passages = {
            key: (entry.document, span if entry.chunking else None)
            for entry in self.held.values()
            for key, span in zip(entry.keys, entry.spans, strict=True)
        }
        assert self.store.passages("c", [*passages, 10**6]) == passages
        expected = {
            key: np.array(vector(self.fingerprint, part), dtype=np.float32).tolist()
            for entry in self.held.values()
            for key, part in zip(entry.keys, entry.parts, strict=True)
        }
        found = dict(pair for block in self.store.vectors("c") for pair in zip(*block, strict=True))
        assert {key: row.tolist() for key, row in found.items()} == expected
        assert list(found) == sorted(expected)
        some = sorted(expected)[::2]
        assert [key for keys, _ in self.store.vectors("c", [*some[::-1], 10**6]) for key in keys] == some
        after = some[-1] if some else 0
        assert [key for keys, _ in self.store.vectors("c", after=after) for key in keys] == [
            key for key in sorted(expected) if key > after
        ]
        assert self.store.tombstones("c", self.last_key).tolist() == sorted(self.tombstones)
        assert self.store.tombstones("c", after).tolist() == [key for key in sorted(self.tombstones) if key <= after]
        assert self.store.last_key("c") == self.last_key
        assert self.store.accepted("c") == sorted(self.accepted)
        size, corpus = self.store.size("c"), self.store.corpus("c")
        assert (size.documents, size.passages) == (len(self.held), len(expected))
        assert corpus.wanted_stemming == self.stemming
        if self.held:
            assert (corpus.fingerprint, corpus.dim) == (self.fingerprint, DIMS.get(self.fingerprint, 5))

    def teardown(self) -> None:
        assert self.store.verify("c") == []
        self.store.close()
        self.folder.cleanup()


@pytest.mark.parametrize("name", soon(STORES, "sqlite"))
def test_store_is_a_dictionary(name: str) -> None:
    run(STORES[name], persistent=name == "sqlite", examples=25, steps=15)


@pytest.mark.parametrize(
    ("most_open", "examples"),
    [
        pytest.param(0, 12, marks=pytest.mark.slow),
        pytest.param(0, 60, marks=pytest.mark.nightly),
        pytest.param(MOST, 60, marks=pytest.mark.nightly),
    ],
)
def test_store_on_disk_is_a_dictionary_at_length(most_open: int, examples: int) -> None:
    def opened(folder: Path) -> Store:
        return SqliteStore(folder, shared=Shared(OpenFiles(most_open)))

    run(opened, persistent=True, examples=examples, steps=60)


def run(opened: Callable[[Path], Store], *, persistent: bool, examples: int, steps: int) -> None:
    machine = type("Machine", (AsADictionary,), {"open": staticmethod(opened), "persistent": persistent})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )
