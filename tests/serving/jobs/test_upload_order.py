"""Tests of the uploads that corpora record, after a kill of the server or a failure of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Corpus
from serving.errors import NotFound, Unhealthy
from serving.jobs import Job
from serving.jobs.upload_order import UPLOAD, UploadOrder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path)
    opened.create(Corpus("c"))
    opened.create(Corpus("d"))
    yield opened
    opened.close()


def upload(id: str, corpus: str = "c", kind: str = UPLOAD) -> Job:
    return Job(id=id, kind=kind, corpus=corpus)


def test_an_upload_is_noted_from_its_acceptance_to_its_end(store: SqliteStore) -> None:
    acceptance = UploadOrder(store)
    for job in (upload("one"), upload("two"), upload("other", kind="reembed")):
        acceptance.accept(job)
    assert (store.accepted("c"), store.accepted("d")) == (["one", "two"], [])
    acceptance.release(upload("one"))
    acceptance.release(upload("other", kind="reembed"))
    assert store.accepted("c") == ["two"]


def test_the_start_mends_what_a_killed_server_left(store: SqliteStore) -> None:
    acceptance = UploadOrder(store)
    acceptance.accept(upload("ended"))
    acceptance.accept(upload("goes on"))
    acceptance.begin(lambda name: {"c": ["goes on", "of an earlier version"], "d": ["elsewhere"]}[name])
    assert store.accepted("c") == ["goes on", "of an earlier version"]
    assert store.accepted("d") == ["elsewhere"]


def test_no_upload_is_accepted_for_a_corpus_that_is_gone_and_its_end_harms_nobody(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acceptance = UploadOrder(store)
    with pytest.raises(NotFound):
        acceptance.accept(upload("one", "gone"))
    acceptance.release(upload("one", "gone"))
    assert not caplog.messages

    def fails(*_: object) -> None:
        raise Unhealthy("the disk fails")

    monkeypatch.setattr(store, "release", fails)
    acceptance.release(upload("one"))
    acceptance.accept(upload("two"))
    acceptance.begin(lambda _: [])
    assert ["the disk fails" in message for message in caplog.messages] == [True, True]
