"""Milvus behind the port: filters as expressions, indexes, and what Milvus refuses."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pymilvus", reason="the extra 'milvus' is not installed")

import grpc
from pymilvus.exceptions import MilvusException

from serving.corpora.filter_language import compile_filter
from serving.corpora.filters import with_id
from serving.corpora.search import Query, SearchOptions
from serving.corpora.stores.milvus import lifecycle, reading, recall, registry
from serving.corpora.stores.milvus.corpora import MilvusCorpora
from serving.corpora.stores.milvus.indexes import planned
from serving.corpora.stores.milvus.registry import REGISTRY
from serving.corpora.stores.milvus.table import Rows
from serving.corpora.stores.milvus.uploads import Uploads
from serving.corpora.values import Chunking, Content, Corpus, Document, Span
from serving.errors import Invalid, Unhealthy, Unsupported
from serving.settings import Settings
from tests.conftest import PATIENCE
from tests.serving.backends import milvus_of
from tests.serving.corpora.stores.contents import content, vectors

MEASURE = recall.measure


def opened(folder: Path, **options: Any) -> MilvusCorpora:
    return MilvusCorpora(Settings(data=folder, store=milvus_of(folder), **options))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusCorpora]:
    made = opened(tmp_path_factory.mktemp("milvus"), index="cpu")
    yield made
    for name in made.names():
        made.drop(name)
    made.close()


@pytest.mark.slow
def test_a_deadline_is_an_error_of_one_line(corpora: MilvusCorpora) -> None:
    class DeadlineError(grpc.RpcError):  # type: ignore[misc]
        def details(self) -> str:
            return "Deadline Exceeded"

    with pytest.raises(Unhealthy, match=": Deadline Exceeded"), corpora._connection.errors():
        raise DeadlineError


def drawn_metadata(draw: np.random.Generator, depth: int = 0) -> Any:
    kind = draw.integers(0, 9 if depth < 2 else 6)
    if kind == 6:
        return [drawn_metadata(draw, depth + 1) for _ in range(draw.integers(0, 3))]
    if kind > 6:
        names = draw.choice(["a", "b", "a.b", "ü"], draw.integers(0, 3), replace=False)
        return {str(name): drawn_metadata(draw, depth + 1) for name in names}
    return [
        None,
        bool(draw.integers(2)),
        int(draw.integers(-2, 3)),
        1.5,
        "ab"[: draw.integers(0, 3)],
        "2024-03-05T08:00Z",
    ][kind]


def drawn_filter(draw: np.random.Generator, depth: int = 0) -> Any:
    kind = draw.integers(0, 6 if depth < 2 else 3)
    if kind > 2:
        parts = [drawn_filter(draw, depth + 1) for _ in range(2)]
        return [{"$and": parts}, {"$or": parts}, {"$not": parts[0]}][kind - 3]
    path = str(draw.choice(["a", "b", "a.b", "a.b.a", "ü"]))
    if kind == 0:
        return {path: {"$exists": bool(draw.integers(2))}}
    if kind == 1:
        return {path: {"$in": [drawn_metadata(draw, 1) for _ in range(2)]}}
    bound = str(draw.choice(["$gt", "$gte", "$lt", "$lte"]))
    return {path: {bound: [0, 1.5, "a", "2024-03-05"][draw.integers(4)]}}


@pytest.mark.slow
def test_filters_find_what_they_match(corpora: MilvusCorpora) -> None:
    draw = np.random.default_rng(0)
    documents = {f"d{i:02}": {"a": drawn_metadata(draw), "b": drawn_metadata(draw)} for i in range(60)}
    corpora.create(Corpus("drawn"))
    corpora.put("drawn", content([(name, name, metadata) for name, metadata in documents.items()]))
    found = 0
    for _ in range(60):
        where = drawn_filter(draw)
        matching = compile_filter(where)
        expected = [name for name, metadata in documents.items() if matching.matches(with_id(metadata, name))]
        page = corpora.page("drawn", None, 100, matching)
        assert ([document.id for document in page.documents], page.total) == (expected, len(expected)), where
        found += 0 < len(expected) < len(documents)
    assert found > 20, "filters that tell documents apart"


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"tags": {"$elemMatch": {"$eq": 1}}}, "filter: corpora on Milvus do not support $elemMatch"),
        ({"prices": {"$gt": 5, "$lt": 20}}, "filter: 'prices' is a list of numbers in some documents"),
        ({"name": {"$gt": "x" * 256}}, "filter: 'name' is compared with 256 characters; the maximum is 255"),
        ({"n": {"$gt": 10**400}}, "filter: 'n' is compared with"),
    ],
)
def test_filters_that_milvus_cannot_answer_are_refused(corpora: MilvusCorpora, where: Any, says: str) -> None:
    if "lists" not in corpora.names():
        corpora.create(Corpus("lists"))
        corpora.put("lists", content([("a", "text", {"prices": [3, 30], "tags": [1], "n": 1, "name": "x"})]))
    with pytest.raises(Invalid) as refused:
        corpora.page("lists", None, 1, compile_filter(where))
    assert refused.value.message.startswith(says)
    with pytest.raises(Invalid):
        corpora.search("lists", [Query("x", np.ones(4, np.float32))], SearchOptions(where=compile_filter(where)))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            Document("a", "x" * 65_536, {}),
            "documents.0: a passage has 65536 bytes, but Milvus stores only 65535: upload with",
        ),
        (Document("a", "x", {"n": list(range(5000))}), "documents.0: the metadata have 500"),
        (Document("a", "x", {"n": "y" * 65_529}), "documents.0: the metadata have more than the 65535 bytes"),
        (Document("a", "x", {str(i): "y" * 256 for i in range(200)}), "documents.0: the metadata have"),
    ],
)
def test_documents_beyond_the_limits_of_milvus_are_refused(
    corpora: MilvusCorpora, document: Document, says: str
) -> None:
    corpora.create(Corpus("limits"))
    with pytest.raises(Invalid) as refused:
        corpora.put("limits", Content([document], np.full((1, 4), 0.5, np.float32), "f"))
    assert refused.value.message.startswith(says)
    assert corpora.corpus("limits")[1].documents == 0


@pytest.mark.slow
def test_a_long_text_is_stored_in_passages(corpora: MilvusCorpora) -> None:
    text = "ü" * 60_000 + " end"
    spans = [Span(0, 30_000), Span(29_000, 60_004)]
    corpora.create(Corpus("long"))
    corpora.put(
        "long", Content([Document("a", text, {})], np.eye(2, 4, dtype=np.float32), "f", [spans], Chunking(16, 0))
    )
    assert corpora.document("long", "a").text == text
    (hits,) = corpora.search("long", [Query("end", None)], SearchOptions(mode="lexical")).hits
    assert [hit.text for hit in hits] == [text[29_000:]]


@pytest.mark.slow
def test_a_collection_that_can_not_be_indexed_is_removed(
    corpora: MilvusCorpora, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MilvusException(1, "no room")

    client = corpora._connection.client
    corpora.create(Corpus("unindexed"))
    before = client.list_collections()
    with monkeypatch.context() as patch:
        patch.setattr(client, "create_index", full)
        with pytest.raises(Unhealthy, match="no room"):
            corpora.put("unindexed", content([("a", "text", {})]))
    assert client.list_collections() == before
    corpora.put("unindexed", content([("a", "text", {})]))


@pytest.mark.slow
def test_metadata_have_the_limit_of_their_json_and_every_number_is_compared(corpora: MilvusCorpora) -> None:
    corpora.create(Corpus("corpora"))  # a name whose plain alias would be the registry
    numbers: dict[str, Any] = {"large": 1e305, "small": -1e305, "many": [0] * 30_000}
    corpora.put("corpora", content([(name, "text", {"n": number}) for name, number in numbers.items()]))
    for where, found in (({"n": {"$gt": 5}}, ["large"]), ({"n": {"$lt": -5.0}}, ["small"])):
        assert [one.id for one in corpora.page("corpora", None, 9, compile_filter(where)).documents] == found


def test_the_type_of_index_follows_size_and_options() -> None:
    assert planned(0, 0.95, "auto", lite=False) == ["HNSW"]
    assert planned(10**7, 0.95, "cpu", lite=False) == ["IVF_SQ8", "HNSW"]
    assert planned(10**9, 0.95, "auto", lite=False) == ["DISKANN", "HNSW"]
    assert planned(10**6, 0.95, "gpu", lite=False) == ["GPU_CAGRA", "HNSW"]
    assert planned(10**6, 1.0, "auto", lite=False) == planned(0, 0.9, "exact", lite=False) == ["FLAT"]
    assert planned(10**6, 0.95, "auto", lite=True) == ["FLAT"]
    assert planned(10**9, 0.95, "gpu", lite=True) == ["HNSW"]


@pytest.mark.slow
def test_milvus_lite_writes_rows_into_files_early_because_it_searches_other_rows_slowly() -> None:
    """In a process of its own, because Milvus Lite reads the limit when it is imported."""
    modules = "serving.corpora.stores.milvus.connection as _, milvus_lite.constants as lite"
    script = f"import {modules}; print(lite.MEMTABLE_MEMORY_LIMIT)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(printed) <= 4 << 20


@pytest.mark.slow
def test_a_new_corpus_gets_the_index_of_its_expected_size(tmp_path: Path) -> None:
    large = opened(tmp_path, index="cpu", expected_passages=10**7)
    large.create(Corpus("by-option"))
    large.create(Corpus("by-size"), passages=10**6)
    kinds = {}
    for name in ("by-option", "by-size"):
        large.put(name, content([("a", "text", {})]))
        report = large.description(name).index
        kinds[name] = report and (report.kind, report.parameters.get("nlist"))
        large.drop(name)
    large.close()
    assert kinds == {"by-option": ("ivf-sq8", int(4 * 10**3.5)), "by-size": ("hnsw", None)}


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [["HNSW"], ["GPU_CAGRA", "IVF_SQ8"]])
def test_the_effort_of_searches_reaches_the_target(
    corpora: MilvusCorpora, monkeypatch: pytest.MonkeyPatch, kinds: list[str]
) -> None:
    """The first type that Milvus has is used."""
    monkeypatch.setattr(lifecycle, "planned", lambda *_, **__: kinds)
    create_index = corpora._connection.client.create_index

    def of_a_cpu(collection: str, given: Any, **options: Any) -> None:
        if any(one.index_type == "GPU_CAGRA" for one in given):
            raise MilvusException(1, "invalid index type: GPU_CAGRA")
        create_index(collection, given, **options)

    monkeypatch.setattr(corpora._connection.client, "create_index", of_a_cpu)
    name = kinds[-1]
    vectors = np.random.default_rng(0).standard_normal((600, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    corpora.create(Corpus(name, recall_target=0.9))
    corpora.put(name, Content([Document(f"d{i}", f"t{i}", {}) for i in range(600)], vectors, "f"))
    unmeasured = corpora.description(name).index
    assert unmeasured and unmeasured.reason == "the recall of this index was not measured yet"
    corpora._connection.client.flush(corpora._registry.read(name).table.collection)  # type: ignore[union-attr]
    report = corpora.build_now(name)
    assert report is not None
    assert (report.kind, report.queries, report.main) == (name.lower().replace("_", "-"), 200, 600)
    assert report.recall >= 0.9
    truth = np.argsort(-(vectors @ vectors[:20].T), axis=0)[:10].T
    result = corpora.search(name, [Query(None, row) for row in vectors[:20]], SearchOptions(k=10))
    assert result.index == report.kind
    hits = [{hit.passage.document.id for hit in one} for one in result.hits]
    recall = np.mean([len(one & {f"d{i}" for i in true}) / 10 for one, true in zip(hits, truth, strict=True)])
    assert recall >= 0.85
    assert corpora.delete_where(name, compile_filter({})) == 600
    emptied = corpora.build_now(name)
    assert emptied and emptied.recall == report.recall, "an empty corpus is not measured"


def test_a_write_may_be_noted_while_an_upload_ends(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "uploads.sqlite")
    with ThreadPoolExecutor(1) as pool:
        for _ in range(25):
            uploads.accept("c", "job")
            ended = pool.submit(uploads.release, "c", "job")
            uploads.note("c", ["a"])
            ended.result()
    assert uploads.overtaken("c", "job") == set()
    uploads.close()


@pytest.mark.slow
def test_the_recall_is_measured_again_after_changes_of_the_index_and_of_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = Queue[float]()

    def measure(rows: Rows, kind: str, target: float) -> registry.Measured | None:
        found = MEASURE(rows, kind, target)
        targets.put(target)
        return found

    monkeypatch.setattr(recall, "measure", measure)
    corpora = opened(tmp_path, index="cpu", exact_below=20)
    corpora.create(Corpus("c", recall_target=0.5))
    corpora.put("c", content([(f"d{i}", f"text {i}", {}) for i in range(20)]))
    assert targets.get(timeout=PATIENCE) == 0.5
    corpora.create(Corpus("c", description="another description, and the same target"))
    stored(corpora, "c")
    corpora.create(Corpus("c", recall_target=0.9))
    assert targets.get(timeout=PATIENCE) == 0.9
    rows = corpora.stale("c", "g", 20)
    corpora.refresh("c", "g", [key for key, _ in rows], vectors("g", [text for _, text in rows]))
    assert corpora.swap("c", "g")
    assert targets.get(timeout=PATIENCE) == 0.9
    stored(corpora, "c")
    with corpora._registry.changing("c") as record:  # as by `copy-corpus`, which ends before its measurement
        corpora._registry.write(replace(record, measured=None))
    corpora.warm()
    assert targets.get(timeout=PATIENCE) == 0.9
    stored(corpora, "c")
    corpora.drop("c")
    corpora.close()


def stored(corpora: MilvusCorpora, name: str) -> None:
    """Wait until a measurement is stored."""
    until = time.monotonic() + PATIENCE
    while corpora._registry.read(name).measured is None:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_there_are_no_snapshots(corpora: MilvusCorpora) -> None:
    with pytest.raises(Unsupported, match="no snapshots: copy"):
        corpora.check_snapshots()


@pytest.mark.slow
def test_other_programs_find_the_rows_under_an_alias(tmp_path: Path) -> None:
    corpora = MilvusCorpora(Settings(data=tmp_path, store=str(tmp_path / "m.db")))
    corpora.create(Corpus("my-notes"))
    corpora.create(Corpus("notes"))
    corpora.put("notes", content([("a", "text", {"n": 1})]))
    corpora.put("my-notes", content([("a", "text", {"n": 1})]))
    aliases = corpora._connection.client.list_aliases()["aliases"]
    assert sorted(one[:18] for one in aliases) == ["isosphere_my_notes", "isosphere_notes"]
    (row,) = corpora._connection.client.query(
        "isosphere_notes", filter='metadata["n"] == 1', output_fields=["document", "text"]
    )
    assert (row["document"], row["text"]) == ("a", "text")
    corpora.drop("notes")
    corpora.drop("my-notes")
    assert corpora._connection.client.list_collections() == [REGISTRY]
    corpora.close()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["create_alias", "drop_collection"])
def test_a_change_of_collections_that_was_cut_short_is_ended_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    settings = Settings(data=tmp_path, store=str(tmp_path / "m.db"))
    corpora = MilvusCorpora(settings)
    corpora.create(Corpus("c"))
    corpora.put("c", content([("a", "text", {})]))
    corpora.create(Corpus("gone"))
    corpora.put("gone", content([("a", "text", {})]))
    keys = corpora.stale("c", "g", 10)
    corpora.refresh("c", "g", [key for key, _ in keys], np.ones((1, 3), np.float32))

    class KilledError(Exception):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(corpora._connection.client, "alter_alias" if step == "create_alias" else step, killed)
        for change in (lambda: corpora.swap("c", "g"), lambda: corpora.drop("gone")):
            with pytest.raises(KilledError):
                change()
            if step == "create_alias":
                break
    corpora.close()
    again = MilvusCorpora(settings)
    again.warm()
    assert again.corpus("c")[0].fingerprint == "g"
    assert again.document("c", "a").text == "text"
    names = {"c", "gone"} if step == "create_alias" else {"c"}
    assert set(again.names()) == names
    collections = [name for name in again._connection.client.list_collections() if name != REGISTRY]
    assert len(collections) == len(names)
    assert again._connection.client.describe_alias("isosphere_c")["collection_name"] in collections
    again.close()


def test_a_document_that_is_deleted_while_a_page_is_read_does_not_end_the_list() -> None:
    documents = [Document(f"d{i}", "text", {}) for i in range(4)]
    assert reading._page([documents[0], None, *documents[2:]], limit=3) == ([documents[0], documents[2]], True)
    assert reading._page([documents[0], None, documents[2]], limit=3) == ([documents[0], documents[2]], False)


def test_a_document_that_is_deleted_while_it_is_read_is_left_out(
    corpora: MilvusCorpora, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembled = Rows.assembled

    def meanwhile(self: Rows, some: Any) -> Any:
        if "gone" in {row["document"] for row in self._query("passage >= 0", ["document"])}:
            corpora.delete("read", "gone")
        return assembled(self, some)

    monkeypatch.setattr(Rows, "assembled", meanwhile)
    corpora.create(Corpus("read"))
    query = Query(None, np.ones(4, np.float32))
    reads: list[Callable[[], list[Document]]] = [
        lambda: [hit.passage.document for hit in corpora.search("read", [query], SearchOptions()).hits[0]],
        lambda: list(corpora.page("read", None, 10).documents),
        lambda: [document for block in corpora.contents("read") for document in block.documents],
    ]
    for read in reads:
        corpora.put("read", content([("gone", "one two", {}), ("stays", "one two", {})], chunking=Chunking(1, 0)))
        assert {document.id for document in read()} == {"stays"}
    corpora.put("read", content([("gone", "one two", {}), ("stays", "one two", {})], chunking=Chunking(1, 0)))
    sampled = corpora.sample("read", 10, None)
    assert len(sampled.passages) == len(sampled.vectors) == 2


def test_a_passage_that_is_deleted_during_a_measurement_is_no_query(
    corpora: MilvusCorpora, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora.create(Corpus("measured"))
    corpora.put("measured", content([(f"d{i}", f"text {i}", {}) for i in range(3)]))
    get = Rows.get

    def meanwhile(self: Rows, *arguments: Any) -> Any:
        corpora.delete_where("measured", compile_filter({"$id": "d1"}))
        return get(self, *arguments)

    monkeypatch.setattr(Rows, "get", meanwhile)
    report = corpora.build_now("measured")
    assert report and report.queries == 2


def test_a_record_of_a_later_version_is_refused_and_the_others_are_served(corpora: MilvusCorpora) -> None:
    corpora.create(Corpus("earlier"))
    corpora._registry.write(registry.Record("later", 0, format=registry.FORMAT + 1))
    for use in (corpora.corpus, corpora.drop, lambda name: corpora.create(Corpus(name))):
        with pytest.raises(Unhealthy, match="'later' was written by a later version"):
            use("later")
    assert corpora.corpus("earlier")[0].name == "earlier"
    listed = {one.corpus.name: one.damage for one in corpora.descriptions(corpora.names())}
    assert "later version" in (listed["later"] or "") and listed["earlier"] is None
    corpora.warm()
    corpora._registry.delete("later")
