"""Tests of `isosphere ingest` with a folder, with and without `--watch`: the corpus follows the folder."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.errors import Refused
from serving.commands import folder
from serving.commands.destinations import Added, Destination, Remote
from serving.commands.folder import Folder, Round
from serving.corpora.filter_language import compile_filter
from serving.corpora.ingest.uploading import Options
from serving.errors import Invalid, Overloaded, ServiceError, Unhealthy
from tests.serving.conftest import Command, Launcher
from tests.serving.corpora.ingest.readers import files


class Shelf:
    """A destination in memory that stores each line of a file as a document."""

    def __init__(self) -> None:
        self.documents = list[tuple[str, Mapping[str, Any]]]()
        self.added = list[str]()
        self.fails: Callable[[str], Exception | Added | None] = lambda _: None

    async def create(self, stemming: str | None, *, own_vectors: bool = False) -> bool:
        return True

    async def drop_empty(self) -> None:
        self.documents.clear()

    async def add(self, file: BinaryIO, options: Options, *, whole: bool = False, key: str = "") -> Added:
        text = file.read().decode()
        failure = self.fails(text)
        if isinstance(failure, Exception):
            raise failure
        self.documents += [(line, options.metadata) for line in text.splitlines()]
        self.added.append(Path(options.metadata[folder.WATCHED]["file"]).name)
        return failure or Added(len(text.splitlines()))

    async def remove(self, where: Mapping[str, Any]) -> None:
        matches = compile_filter(where).matches
        self.documents = [one for one in self.documents if not matches(one[1])]

    async def metadata(self, where: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        for _, metadata in self.documents:
            if compile_filter(where).matches(metadata):
                yield metadata

    @property
    def texts(self) -> list[str]:
        return sorted(text for text, _ in self.documents)


def prepare(file: Path, metadata: dict[str, Any]) -> Options:
    return Options.of_file(file, metadata=metadata)


def write(path: Path, text: str, age: float = 10) -> None:
    """Write a file that has not changed for some seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    when = path.stat().st_mtime - age
    os.utime(path, (when, when))


def synchronised(path: Path, shelf: Destination, age: float = 0) -> Round:
    """Synchronise the folder once, like a command that was just started."""

    async def once() -> Round:
        found = Folder(path, shelf, prepare)
        await found.load()
        return await found.synchronise(age)

    return asyncio.run(once())


NAMES, TEXTS = ("a.txt", "b.txt", "deep/c.txt"), ("one", "two\nthree", "one\nfour")
STEPS = st.lists(
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.sampled_from(TEXTS))
    | st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just(""))
    | st.tuples(st.sampled_from(("look", "restart")), st.just(""), st.just("")),
    max_size=12,
)


LOOK, DELETE = ("look", "", ""), ("delete", "a.txt", "")
WRITE = ("write", "a.txt", "one")


@given(steps=STEPS)
@example(steps=[WRITE, LOOK, DELETE, LOOK, WRITE])
def test_the_corpus_has_what_the_folder_has(steps: list[tuple[str, str, str]]) -> None:
    async def follow(path: Path) -> None:
        shelf = Shelf()
        watching = Folder(path, shelf, prepare)
        age = 1000.0
        for step, name, text in [*steps, ("look", "", "")]:
            age -= 10
            if step == "write":
                write(path / name, text, age)
            elif step == "delete":
                (path / name).unlink(missing_ok=True)
            else:
                if step == "restart":
                    watching = Folder(path, shelf, prepare)
                    await watching.load()
                await watching.synchronise()
                there = [line for file in path.rglob("*.txt") for line in file.read_text().splitlines()]
                assert shelf.texts == sorted(there)
                assert await watching.synchronise() == Round()

    with tempfile.TemporaryDirectory() as path:
        asyncio.run(follow(Path(path)))


def test_only_files_of_documents_are_read(tmp_path: Path) -> None:
    for name in ("a.txt", ".hidden.txt", ".git/b.txt", "c.exe", "d", "e.TXT", "f.csv.gz", "g.EXE"):
        write(tmp_path / name, "text")
    os.mkfifo(tmp_path / "pipe.txt")
    shelf = Shelf()
    done = synchronised(tmp_path, shelf)
    assert done.added == 3 and done.ignored == {".exe": 2, "": 1} and "2 .exe, 1 without suffix" in str(done)
    assert sorted(shelf.added) == ["a.txt", "e.TXT", "f.csv.gz"]


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    shelf = Shelf()
    write(tmp_path / "a.txt", "old")
    synchronised(tmp_path, shelf)
    (tmp_path / "a.txt").write_text("half")
    assert synchronised(tmp_path, shelf, 5) == Round() and shelf.texts == ["old"]
    assert synchronised(tmp_path, shelf).added == 1 and shelf.texts == ["half"]


def test_files_with_a_time_in_the_future_are_read(tmp_path: Path) -> None:
    shelf = Shelf()
    write(tmp_path / "a.txt", "one", age=-1000)
    assert synchronised(tmp_path, shelf, 5).added == 1
    write(tmp_path / "a.txt", "two", age=-1000)
    assert synchronised(tmp_path, shelf).added == 1 and shelf.texts == ["two"]


def test_unreadable_files_are_reported_and_keep_their_documents(tmp_path: Path) -> None:
    shelf = Shelf()
    write(tmp_path / "a.txt", "one")
    synchronised(tmp_path, shelf)
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").symlink_to("a.txt")
    write(tmp_path / "b.txt", "two")
    done = synchronised(tmp_path, shelf)
    assert (done.added, len(done.failed)) == (1, 1) and f"{tmp_path}/a.txt: " in done.failed[0]
    assert shelf.texts == ["one", "two"]


def test_a_replacement_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    shelf = Shelf()
    write(tmp_path / "a.txt", "old")
    synchronised(tmp_path, shelf)
    old = list(shelf.documents)
    write(tmp_path / "a.txt", "new")
    synchronised(tmp_path, shelf)
    shelf.documents += old  # The process was killed before they were removed.
    assert synchronised(tmp_path, shelf).added == 1 and shelf.texts == ["new"]


def test_a_folder_that_can_not_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    shelf = Shelf()
    write(tmp_path / "notes" / "a.txt", "one")
    synchronised(tmp_path / "notes", shelf)
    with pytest.raises(Unhealthy, match="No such file"):
        synchronised((tmp_path / "notes").rename(tmp_path / "away").with_name("notes"), shelf)
    assert shelf.texts == ["one"]


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    shelf = Shelf()
    for name in ("a", "b"):
        write(tmp_path / name / "x.txt", name)
        synchronised(tmp_path / name, shelf)
    (tmp_path / "a" / "x.txt").unlink()
    synchronised(tmp_path / "a", shelf)
    assert shelf.texts == ["b"]


@pytest.mark.parametrize(
    "failure", [Invalid("bad"), Refused("no encoder"), Added(1, errors=["line 2: bad"], state="failed")]
)
def test_a_bad_file_is_told_once_and_the_others_are_added(tmp_path: Path, failure: Any) -> None:
    shelf = Shelf()
    shelf.fails = lambda text: failure if text == "bad" else None
    write(tmp_path / "a.txt", "bad")
    write(tmp_path / "b.txt", "good")

    async def follow() -> None:
        watching = Folder(tmp_path, shelf, prepare)
        first = await watching.synchronise()
        assert len(first.failed) == 1 and str(tmp_path / "a.txt") in first.failed[0] and first.added == 1
        assert await watching.synchronise() == Round()
        assert shelf.texts == ["good"], "nothing of the bad file is left"
        write(tmp_path / "a.txt", "mended")
        assert (await watching.synchronise()).added == 1
        assert shelf.texts == ["good", "mended"]

    asyncio.run(follow())


def test_watching_goes_on_after_what_may_pass_and_tells_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(folder, "REST", 1)
    shelf, refused, told = Shelf(), [0], list[Round]()
    write(tmp_path / "a.txt", "one")

    def fails(_: str) -> ServiceError | None:
        refused[0] += 1
        return None if refused[0] > 3 else Overloaded("full") if refused[0] % 2 else Unhealthy("gone")

    shelf.fails = fails

    def tell(round: Round) -> None:
        told.append(round)
        if round.added:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Folder(tmp_path, shelf, prepare).watch(tell))
    assert shelf.texts == ["one"]
    assert [len(one.failed) for one in told] == [1, 1, 1, 0]


def test_watching_tells_once_which_files_it_ignores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(folder, "SETTLED_SECONDS", 0)
    shelf, told = Shelf(), list[Round]()
    write(tmp_path / "sheet.xlsx", "one")

    def tell(round: Round) -> None:
        told.append(round)
        if round.added:
            raise asyncio.CancelledError
        write(tmp_path / "a.txt", "one")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Folder(tmp_path, shelf, prepare).watch(tell))
    assert [one.ignored for one in told] == [{".xlsx": 1}, {}]


# Tests of the command.


def standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def exported(command: Command, capsys: pytest.CaptureFixture[str], corpus: str = "c") -> list[dict[str, Any]]:
    capsys.readouterr()
    assert command("export", "--corpus", corpus) == 0
    return [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("options", "content", "texts"),
    [
        ([], b'{"text": "one"}\n{"text": "two"}\n', ["one", "two"]),
        (["--format", "jsonl"], b'{"text": "one"}\n', ["one"]),
        (["--format", "text", "--metadata", '{"from": "pipe"}'], b"one\ntwo\n", ["one", "two"]),
        (["--format", "csv", "--text-column", "b"], b"a,b\n1,one\n", ["one"]),
        (["--format", "parquet"], files.columns(text=["one"]), ["one"]),
        (["--format", "markdown"], b"# A\n\none", ["A\n\none"]),
    ],
)
def test_standard_input(
    command: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    options: list[str],
    content: bytes,
    texts: list[str],
) -> None:
    standard_input(monkeypatch, content)
    assert command("ingest", "-", "--corpus", "c", *options) == 0
    found = exported(command, capsys)
    assert [one["text"] for one in found] == texts
    assert "--metadata" not in options or found[0]["metadata"] == {"from": "pipe"}


def test_a_wrong_line_of_standard_input_is_named(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    standard_input(monkeypatch, b"oops\n")
    assert command("ingest", "-", "--corpus", "c") == 1
    assert "standard input: line 1: not JSON" in capsys.readouterr().err


def test_a_folder_of_every_format(command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    write(notes / "a.md", files.MARKDOWN)
    write(notes / "rows.csv", "body,n:number\none,1\n")
    write(notes / "encrypted.pdf", "")
    for name, content in (("a.pdf", files.PDF), ("b.docx", files.word())):
        write(notes / name, "")
        (notes / name).write_bytes(content)
        os.utime(notes / name, (0, 0))
    ingest = ("ingest", str(notes), "--corpus", "c", "--text-column", "body", "--chunk-tokens", "32")
    assert command(*ingest) == 1
    said = capsys.readouterr().err
    assert f"{notes}/encrypted.pdf: the file is empty" in said and "4 files with 9 documents" in said
    found = {one["id"]: one["metadata"] for one in exported(command, capsys)}
    assert found[f"{notes}/a.md#linux"]["headings"] == ["Install", "Linux"]
    assert found[f"{notes}/a.pdf#page=3"]["page"] == 3
    digest = hashlib.sha256(files.MARKDOWN.encode()).hexdigest()
    assert found[f"{notes}/a.md"]["watched"]["sha256"] == digest
    (notes / "a.md").unlink()
    (notes / "encrypted.pdf").unlink()
    assert command(*ingest) == 0
    assert "0 files with 0 documents added or replaced, 1 files removed" in capsys.readouterr().err
    assert len(exported(command, capsys)) == 6


@pytest.mark.slow
def test_a_folder_of_a_running_server(launch: Launcher, tmp_path: Path) -> None:
    server = launch()
    write(tmp_path / "notes" / "a.md", "# A\n\ntext")
    write(tmp_path / "notes" / "long.txt", "".join(f"line {i}\n" for i in range(600)))

    async def follow() -> None:
        there = Remote(server.address, "c", None)
        assert await there.create("porter") and not await there.create("porter")
        notes = Folder(tmp_path / "notes", there, prepare)
        await notes.load()
        assert (await notes.synchronise()).documents == 601
        write(tmp_path / "notes" / "a.md", "# A\n\nchanged")
        (tmp_path / "notes" / "long.txt").unlink()
        again = Folder(tmp_path / "notes", there, prepare)
        await again.load()
        assert await again.synchronise() == Round(added=1, documents=1, removed=1)
        write(tmp_path / "notes" / "bad.csv", "n\n1\n")
        assert "there is no column 'text'" in (await again.synchronise()).failed[0]
        with pytest.raises(ServiceError, match="no corpus 'd'"):
            await Remote(server.address, "d", None).remove({"a": 1})
        with pytest.raises(Unhealthy, match=r"http://127\.0\.0\.1:9"):
            await Remote("http://127.0.0.1:9", "c", None).drop_empty()

    asyncio.run(follow())
    listed = server.client.get("/corpora/c/documents").json()["documents"]
    assert [one["text"] for one in listed] == ["A\n\nchanged"]
