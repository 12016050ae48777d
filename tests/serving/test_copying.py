"""Tests of copying and comparing corpora between data folders and Milvus."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from models.errors import Refused
from serving.__main__ import main
from serving.commands import copying
from serving.commands.copying import HOUR
from serving.commands.starting import opened_corpora
from serving.corpora.backend import Backend
from serving.corpora.filter_language import compile_filter
from serving.corpora.values import NO_SETTINGS, Chunking, Corpus, WordSettings
from serving.operations import clock
from serving.settings import Settings
from tests.serving.backends import WITH_MILVUS
from tests.serving.corpora.stores.contents import content

NAME = "notes"


def settings(place: Path) -> Settings:
    if place.suffix == ".db":
        return Settings(data=place.with_suffix(".data"), store=str(place))
    return Settings(data=place)


WORDS = WordSettings(synonyms={"ny": ["new york"]}, stop_words=["the"])


def filled(place: Path) -> None:
    corpora = opened_corpora(settings(place))
    words = NO_SETTINGS if place.suffix == ".db" else WORDS
    corpora.create(Corpus(NAME, description="mine", recall_target=0.9, stemming="porter", words=words))
    rows = [(f"d{i:03}", f"text number {i} ü", {"n": i, "deep": {"x": [1.5, None]}}) for i in range(80)]
    corpora.put(NAME, content(rows[:40]))
    corpora.put(NAME, content(rows[40:], chunking=Chunking(2, 0)))
    corpora.put(NAME, content([("d001", "replaced", {})]))
    corpora.delete_where(NAME, compile_filter({"n": {"$gte": 70}}))
    corpora.close()


@pytest.fixture
def opened() -> Iterator[list[Backend]]:
    held: list[Backend] = []
    yield held
    for corpora in held:
        corpora.close()


@pytest.mark.slow
@WITH_MILVUS
@pytest.mark.parametrize(("source", "target"), [("data", "milvus.db"), ("milvus.db", "data")])
def test_a_copy_equals_its_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opened: list[Backend], source: str, target: str
) -> None:
    filled(tmp_path / source)
    asked = ["copy", f"{tmp_path / source}#{NAME}", f"{tmp_path / target}#copy"]
    assert main(asked) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{tmp_path / target}#copy: 70 documents in 100 passages, digest ")
    assert ("synonyms, stop_words" in said.err) == (target == "milvus.db")
    assert main(asked) == 2
    assert "exists and has 70 documents: choose another name, or use --replace" in capsys.readouterr().err
    assert main([*asked, "--replace"]) == 0
    for place, name in ((source, NAME), (target, "copy")):
        corpora = opened_corpora(settings(tmp_path / place))
        opened.append(corpora)
        described, size = corpora.corpus(name)
        assert (described.description, described.recall_target, described.stemming) == ("mine", 0.9, "porter")
        assert (described.fingerprint, size.documents, size.passages) == ("f", 70, 100)
        assert corpora.document(name, "d001").text == "replaced"
        assert corpora.verify(name) == []


def test_a_copy_has_the_settings_of_word_search(tmp_path: Path, opened: list[Backend]) -> None:
    filled(tmp_path)
    assert main(["copy", f"{tmp_path}#{NAME}", f"{tmp_path}#copy"]) == 0
    opened.append(opened_corpora(settings(tmp_path)))
    assert opened[0].corpus("copy")[0].words == WORDS


@pytest.mark.slow
@WITH_MILVUS
def test_a_copy_has_the_index_of_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.corpora.stores.milvus.indexes.IN_MEMORY", 99)
    filled(tmp_path / "data")
    assert main(["copy", f"{tmp_path / 'data'}#{NAME}", f"{tmp_path / 'milvus.db'}", "--index", "cpu"]) == 0
    corpora = opened_corpora(settings(tmp_path / "milvus.db"))
    report = corpora.description(NAME).index
    corpora.close()
    assert report and report.kind == "ivf-sq8"


@pytest.mark.slow
def test_a_copy_that_differs_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, opened: list[Backend]
) -> None:
    filled(tmp_path)
    copied = copying._copied

    def wrong(*given: Any) -> copying.Sums:
        found = copied(*given)
        found.add(content([("lost", "another text", {})]))
        return found

    monkeypatch.setattr(copying, "_copied", wrong)
    assert main(["copy", f"{tmp_path}#{NAME}", f"{tmp_path}#copy"]) == 1
    assert "the copy was deleted" in capsys.readouterr().err
    opened.append(opened_corpora(settings(tmp_path)))
    assert opened[0].names() == [NAME]


def test_a_document_that_expires_while_it_is_copied_makes_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, opened: list[Backend]
) -> None:
    (tmp_path / "corpora").mkdir()
    corpora = opened_corpora(settings(tmp_path))
    corpora.create(Corpus(NAME))
    some = content([(f"d{hours}", f"text {hours}", {}) for hours in range(1, 5)])
    expiring = [document._replace(expires_at=hours * HOUR) for hours, document in enumerate(some.documents, 1)]
    monkeypatch.setattr(clock, "time_ns", lambda: 0)
    corpora.put(NAME, replace(some, documents=expiring))
    corpora.close()
    copied = copying._copied

    def slowly(*given: Any) -> copying.Sums:
        found = copied(*given)
        monkeypatch.setattr(clock, "time_ns", lambda: 1000 * (2 * HOUR + HOUR // 2))
        return found

    monkeypatch.setattr(copying, "_copied", slowly)
    assert main(["copy", f"{tmp_path}#{NAME}", f"{tmp_path}#copy"]) == 0
    assert "2 documents in 2 passages" in capsys.readouterr().out
    opened.append(opened_corpora(settings(tmp_path)))
    assert [one.id for one in opened[0].page("copy", None, 9, None).documents] == ["d3", "d4"]


def test_a_copy_that_is_stopped_is_not_said_to_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, opened: list[Backend]
) -> None:
    filled(tmp_path)
    monkeypatch.setattr(copying, "_copied", Mock(side_effect=KeyboardInterrupt))
    assert main(["copy", f"{tmp_path}#{NAME}", f"{tmp_path}#copy"]) == 130
    assert "kept" not in capsys.readouterr().err
    opened.append(opened_corpora(settings(tmp_path)))
    assert opened[0].names() == [NAME]


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("{}", "x", "{}: give a store and a corpus, such as var#notes"),
        ("{}#notes", "{}", "{}#notes: source and copy are the same corpus"),
        ("{}/nowhere#notes", "{}", "{}/nowhere: this folder has no corpora"),
        ("{}#none", "{}#other", "there is no corpus 'none'"),
        ("{}#a/b", "{}", "'a/b' is not a corpus name"),
    ],
)
def test_places_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, target: str, says: str
) -> None:
    (tmp_path / "corpora").mkdir()
    assert main(["copy", source.format(tmp_path), target.format(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("isosphere copy-corpus: ")
    assert says.format(tmp_path) in line


def test_a_verified_copy_stays_although_its_report_can_not_be_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Backend]
) -> None:
    filled(tmp_path)
    monkeypatch.setattr(copying, "print", Mock(side_effect=OSError(errno.ENOSPC, "full")), raising=False)
    assert main(["copy", f"{tmp_path}#{NAME}", f"{tmp_path}#copy"]) == 1
    opened.append(opened_corpora(settings(tmp_path)))
    assert opened[0].names() == ["copy", NAME]


@pytest.mark.parametrize(
    "place", ["milvus://user:secret@host", "milvus://user:sec/secret@host", "milvus://user:1/secret@host"]
)
def test_messages_about_a_place_have_no_password(place: str) -> None:
    with pytest.raises(Refused) as refused:
        copying.Place.of(place)
    for message in (str(refused.value), str(copying.Place.of(f"{place}#notes"))):
        assert "host" in message and "secret" not in message
    with pytest.raises(Refused, match="%23") as refused:
        copying.Place.of("milvus://user:sec#secret@host#notes")
    assert "secret" not in str(refused.value)
