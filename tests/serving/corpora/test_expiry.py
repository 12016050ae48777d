"""Documents that expire: the contract of every backend, and a random walk against a dict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.commands.starting import opened_corpora
from serving.corpora.backend import Backend
from serving.corpora.corpora import Corpora
from serving.corpora.filter_language import compile_filter
from serving.corpora.open_corpus import Indexes
from serving.corpora.search import Examples, Mode, Query, SearchOptions
from serving.corpora.stores.sqlite import MemoryStore
from serving.corpora.values import Changes, Chunking, Content, Corpus, Document, FacetValue, Sort
from serving.errors import Invalid, NotFound
from serving.operations import clock
from tests.serving.backends import BACKENDS
from tests.serving.corpora.stores.contents import Row, content, vector
from tests.serving.corpora.test_backends import settings

MODES: list[Mode] = ["dense", "lexical", "hybrid"]
SetClock = Callable[[int], None]


@pytest.fixture(scope="module", params=[*BACKENDS.values()])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    opened = opened_corpora(settings(tmp_path_factory.mktemp("corpora"), request.param))
    yield opened
    for name in opened.names():
        opened.drop(name)
    opened.close()


_names = (f"e{i}" for i in count())


@pytest.fixture
def corpus(backend: Backend) -> Iterator[str]:
    name = next(_names)
    assert backend.create(Corpus(name))
    yield name
    if name in backend.names():
        backend.drop(name)


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Set the server's clock to a number of microseconds since 1970."""

    def set_to(moment: int) -> None:
        monkeypatch.setattr(clock, "time_ns", lambda: 1000 * moment)

    set_to(0)
    return set_to


def expiring(rows: Sequence[Row], expires_at: Sequence[int | None], chunking: Chunking | None = None) -> Content:
    made = content(rows, chunking=chunking)
    documents = [one._replace(expires_at=at) for one, at in zip(made.documents, expires_at, strict=True)]
    return replace(made, documents=documents)


def found(backend: Backend, name: str, mode: Mode = "dense", **options: Any) -> list[str]:
    query = Query("word", None if mode == "lexical" else np.array(vector("f", "word"), np.float32))
    (hits,) = backend.search(name, [query], SearchOptions(mode=mode, **options)).hits
    return [hit.passage.document.id for hit in hits]


def listed(backend: Backend, name: str, where: Any = None, sort: Sequence[Sort] = ()) -> list[str]:
    page = backend.page(name, None, 100, compile_filter(where) if where else None, sort)
    assert page.total == len(page.documents)
    return [document.id for document in page.documents]


@pytest.fixture
def three(backend: Backend, corpus: str, set_clock: SetClock) -> str:
    """Document a never expires, b expires at 10, and c, which has three passages, at 20."""
    rows: list[Row] = [("a", "word one", {"n": 1, "k": "x"}), ("b", "word", {"n": 2, "k": "y"})]
    backend.put(corpus, expiring(rows, [None, 10]))
    backend.put(corpus, expiring([("c", "word two three", {"n": 3, "k": "y"})], [20], Chunking(1, 0)))
    return corpus


@pytest.mark.slow
def test_a_document_is_there_until_its_moment(backend: Backend, three: str, set_clock: SetClock) -> None:
    set_clock(9)
    backend.remove_expired()
    assert listed(backend, three) == ["a", "b", "c"]
    assert backend.document(three, "b") == Document("b", "word", {"n": 2, "k": "y"}, expires_at=10)
    assert backend.document(three, "a").expires_at is None
    for mode in MODES:
        assert set(found(backend, three, mode)) == {"a", "b", "c"}
    assert backend.corpus(three)[1][::2] == (3, 5)


@pytest.mark.parametrize("removed", [False, True])
def test_from_its_moment_on_a_document_is_nowhere(
    backend: Backend, three: str, set_clock: SetClock, *, removed: bool
) -> None:
    set_clock(10)
    if removed:
        backend.remove_expired()
    with pytest.raises(NotFound):
        backend.document(three, "b")
    assert listed(backend, three) == ["a", "c"]
    assert listed(backend, three, {"k": "y"}) == listed(backend, three, {"$id": {"$in": ["b", "c"]}}) == ["c"]
    assert listed(backend, three, {"k": {"$ne": "x"}}) == ["c"]
    assert listed(backend, three, sort=[Sort("n", descending=True)]) == ["c", "a"]
    for mode in MODES:
        assert sorted(set(found(backend, three, mode))) == ["a", "c"]
        assert found(backend, three, mode, k=1) in (["a"], ["c"]), "others take its place"
        assert set(found(backend, three, mode, where=compile_filter({"k": "y"}))) == {"c"}
    with pytest.raises(Invalid, match="no document 'b'"):
        backend.search(three, [Query(None, like=Examples(["b"]))], SearchOptions())
    facets = {facet.field: facet for facet in backend.facets(three, 5).fields}
    assert (facets["n"].least, facets["n"].greatest) == (1, 3)
    assert set(facets["k"].values) == {FacetValue("x", 1), FacetValue("y", 1)}
    for query, where in ((None, None), ("word", None), (None, {"n": {"$gt": 0}}), ("word", {"n": {"$gt": 0}})):
        counts = backend.counts(three, query, compile_filter(where) if where else None, ["k"], 5)
        assert counts.passages == (2 if query else 4)
        assert set(counts.values["k"]) == {FacetValue("x", 1), FacetValue("y", 1)}
    assert backend.corpus(three)[1][::2] == (2, 4)
    assert backend.patch(three, ["b"], Changes(expires_at=None)) == 0
    assert backend.delete_where(three, compile_filter({"n": 2})) == 0
    with pytest.raises(NotFound):
        backend.delete(three, "b")
    copied = [document for one in backend.contents(three) for document in one.documents]
    assert [(document.id, document.expires_at) for document in copied] == [("a", None), ("c", 20)]
    assert {one.document for one in backend.sample(three, 9, None).passages} == {"a", "c"}
    (warning,) = backend.unmatched(three, compile_filter({"m": 2}))
    assert "no document has the field 'm'" in warning
    assert backend.verify(three) == []
    backend.put(three, expiring([("b", "word again", {"n": 4})], [None]))
    assert listed(backend, three, {"n": 4}) == ["b"]


def test_removed_documents_are_gone(backend: Backend, three: str, set_clock: SetClock) -> None:
    set_clock(30)
    backend.remove_expired()
    set_clock(0)
    assert listed(backend, three) == ["a"]
    assert found(backend, three) == found(backend, three, "lexical") == ["a"]
    assert backend.corpus(three)[1][::2] == (1, 1)
    assert backend.verify(three) == []


def test_a_patch_moves_the_moment(backend: Backend, three: str, set_clock: SetClock) -> None:
    assert backend.patch(three, ["b", "c"], Changes({"seen": True})) == 2
    assert (backend.document(three, "b").expires_at, backend.document(three, "c").expires_at) == (10, 20)
    assert backend.patch(three, ["b"], Changes(expires_at=None)) == 1
    assert backend.patch(three, ["a"], Changes({"n": 9}, expires_at=5)) == 1
    assert backend.patch(three, compile_filter({"n": 3}), Changes(expires_at=40)) == 1
    assert backend.document(three, "a") == Document("a", "word one", {"n": 9, "k": "x"}, expires_at=5)
    set_clock(30)
    backend.remove_expired()
    assert listed(backend, three, {"seen": True}) == listed(backend, three) == ["b", "c"]
    assert backend.document(three, "c").text == "word two three"


def test_a_new_version_has_its_own_moment(backend: Backend, three: str, set_clock: SetClock) -> None:
    backend.put(three, expiring([("b", "word", {}), ("a", "word", {})], [None, 5]))
    set_clock(10)
    assert sorted(listed(backend, three)) == ["b", "c"]


def test_a_moment_in_the_past_hides_an_earlier_version(backend: Backend, three: str, set_clock: SetClock) -> None:
    set_clock(6)
    backend.put(three, expiring([("a", "word", {})], [5]))
    assert listed(backend, three) == ["b", "c"]


def test_a_removal_does_not_win_over_a_job(backend: Backend, three: str, set_clock: SetClock) -> None:
    backend.accept(three, "job")
    set_clock(15)
    backend.remove_expired()
    backend.put(three, replace(expiring([("b", "word by a job", {})], [50]), job="job"))
    assert backend.document(three, "b").text == "word by a job"
    backend.release(three, "job")


def test_another_encoder_keeps_moments(backend: Backend, three: str, set_clock: SetClock) -> None:
    set_clock(12)
    stale = backend.stale(three, "g", 100)
    made = np.array([vector("g", text) for _, text in stale], np.float32)
    backend.refresh(three, "g", [key for key, _ in stale], made)
    assert backend.swap(three, "g")
    assert listed(backend, three) == ["a", "c"]
    assert backend.document(three, "c").expires_at == 20
    backend.remove_expired()
    set_clock(21)
    backend.remove_expired()
    assert backend.verify(three) == []
    set_clock(0)
    assert listed(backend, three) == ["a"]


def test_a_snapshot_has_moments(tmp_path: Path, set_clock: SetClock) -> None:
    here = opened_corpora(settings(tmp_path / "here", "sqlite"))
    here.create(Corpus("c"))
    here.put("c", expiring([("a", "word", {}), ("b", "word", {})], [None, 10]))
    set_clock(10)
    here.copy("c", tmp_path / "copied.sqlite")
    here.adopt("d", tmp_path / "copied.sqlite")
    assert listed(here, "d") == listed(here, "c") == ["a"]
    set_clock(9)
    assert listed(here, "d") == ["a", "b"]
    here.close()
    again = opened_corpora(settings(tmp_path / "here", "sqlite"))
    set_clock(10)
    assert listed(again, "c") == ["a"]
    again.close()


# A random walk on SQLite.

NAMES = st.sampled_from([f"d{i}" for i in range(6)])
MOMENTS = st.none() | st.integers(0, 30)
PUTS = st.tuples(st.just("put"), st.dictionaries(NAMES, st.tuples(st.integers(0, 2), MOMENTS), min_size=1, max_size=4))
PATCHES = st.tuples(st.just("patch"), NAMES, MOMENTS | st.just("kept"))
STEPS = st.lists(
    PUTS
    | PATCHES
    | st.tuples(st.just("delete"), st.integers(0, 2))
    | st.tuples(st.just("clock"), st.integers(0, 30))
    | st.just(("sweep",)),
    max_size=14,
)


@pytest.mark.slow
@given(STEPS, st.booleans())
def test_a_walk_is_that_of_a_dict(tmp_path_factory: pytest.TempPathFactory, steps: list[Any], split: bool) -> None:
    held: dict[str, tuple[int, int | None]] = {}
    moment = 0
    corpora = Corpora(MemoryStore(), Indexes(tmp_path_factory.mktemp("indexes")))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clock, "time_ns", lambda: 1000 * moment)
        corpora.create(Corpus("c"))
        try:
            for step in steps:
                match step:
                    case "put", rows:
                        made: list[Row] = [(name, f"word {name}", {"n": n}) for name, (n, _) in rows.items()]
                        moments = [at for _, at in rows.values()]
                        corpora.put("c", expiring(made, moments, Chunking(1, 0) if split else None))
                        for name in rows:
                            held.pop(name, None)
                        held |= rows
                    case "patch", name, at:
                        there = name in alive(held, moment)
                        assert corpora.patch("c", [name], Changes(expires_at=at)) == there
                        if there and at != "kept":
                            held[name] = held[name][0], at
                    case "delete", n:
                        gone = [name for name, of in alive(held, moment).items() if of == n]
                        assert corpora.delete_where("c", compile_filter({"n": n})) == len(gone)
                        held = {name: of for name, of in held.items() if name not in gone}
                    case "clock", now:
                        moment = now
                    case _:
                        corpora.remove_expired()
                        held = {name: held[name] for name in alive(held, moment)}
                check(corpora, alive(held, moment), passages=2 if split else 1)
            assert corpora.verify("c") == []
        finally:
            corpora.close()


def alive(held: dict[str, tuple[int, int | None]], moment: int) -> dict[str, int]:
    return {name: n for name, (n, at) in held.items() if at is None or at > moment}


def check(corpora: Corpora, there: dict[str, int], *, passages: int) -> None:
    assert listed(corpora, "c") == list(there)
    assert listed(corpora, "c", {"n": {"$ne": 1}}) == [name for name, n in there.items() if n != 1]
    assert listed(corpora, "c", sort=[Sort("n")]) == sorted(there, key=there.__getitem__)
    assert corpora.corpus("c")[1][::2] == (len(there), passages * len(there))
    for mode in MODES:
        expected = Counter(dict.fromkeys(there, 1 if mode == "lexical" else passages))
        assert Counter(found(corpora, "c", mode, k=50)) == expected
        assert len(found(corpora, "c", mode, k=2)) == min(2, expected.total())
    values = Counter(there.values())
    for facet in corpora.facets("c", 5).fields:
        assert {value.value: value.documents for value in facet.values} == values
    assert {value.value: value.documents for value in corpora.counts("c", None, None, ["n"], 5).values["n"]} == values
    assert corpora.counts("c", "word", None, [], 5).passages == len(there)
