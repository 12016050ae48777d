"""Tests of uploads of Parquet, Arrow, Markdown, HTML, PDF and DOCX over HTTP: documents, limits and errors."""

from __future__ import annotations

import gzip
import io
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow
import pytest
from fastapi.testclient import TestClient

from serving.corpora.ingest import reading
from serving.corpora.ingest.readers.__main__ import main
from serving.errors import Malformed, TooLarge, Unhealthy
from tests.serving.corpora.ingest.readers import files
from tests.serving.corpora.ingest.reading import SETTINGS, read
from tests.serving.corpora.ingest.uploading import DOCUMENTS, ended, of, stored

Refuses = Callable[..., None]
TABLE = pyarrow.table({"id": ["a", "b"], "text": ["one", "two"], "year": [1999, None]})


@pytest.fixture(autouse=True)
def corpus(client: TestClient) -> None:
    client.put("/corpora/c")


def documents(client: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(DOCUMENTS).json()["documents"]
    return found


FILES = [
    ("application/vnd.apache.parquet", "a.parquet", files.parquet(TABLE), ["a", "b"]),
    ("application/vnd.apache.arrow.file", "a.arrow", files.arrow(TABLE), ["a", "b"]),
    ("application/vnd.apache.arrow.stream", "a.arrows", files.arrow(TABLE, stream=True), ["a", "b"]),
    ("text/markdown", "a.md", files.MARKDOWN.encode(), ["a.md", "a.md#linux", "a.md#windows"]),
    ("text/html", "a.html", b"<h1>A</h1>text<h2>B</h2>more", ["a.html#a", "a.html#b"]),
    ("application/pdf", "a.pdf", files.PDF, ["a.pdf#page=1", "a.pdf#page=3"]),
    (
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "a.docx",
        files.word(),
        ["a.docx", "a.docx#linux", "a.docx#windows"],
    ),
]


@pytest.mark.parametrize(
    ("media", "name", "content", "ids"),
    [
        pytest.param(*one, id=one[1], marks=[] if one[1] in ("a.parquet", "a.html", "a.docx") else [pytest.mark.slow])
        for one in FILES
    ],
)
def test_files_as_browsers_and_programs_send_them(
    client: TestClient, media: str, name: str, content: bytes, ids: list[str]
) -> None:
    answer = client.post(DOCUMENTS, files={"file": (name, content, "application/octet-stream")})
    assert (answer.status_code, answer.json().get("ids")) == (200, ids), answer.text
    by_form = documents(client)
    again = client.post(f"{DOCUMENTS}?source={name}", content=content, headers=of(media))
    assert again.json()["ids"] == ids, again.text
    assert documents(client) == by_form
    packed = client.post(DOCUMENTS, files={"file": (f"{name}.gz", gzip.compress(content))})
    assert packed.json()["count"] == len(ids), packed.text


def test_a_table_has_metadata(client: TestClient) -> None:
    client.post(DOCUMENTS, content=files.parquet(TABLE), headers=of("application/x-parquet")).raise_for_status()
    assert [one["metadata"] for one in documents(client)] == [{"year": 1999}, {}]


@pytest.mark.slow
def test_a_long_table_becomes_a_job(client: TestClient) -> None:
    rows = 700
    table = pyarrow.table({"_id": [f"d{i}" for i in range(rows)], "body": [f"text {i}" for i in range(rows)]})
    where = f"{DOCUMENTS}?text_column=body&id_column=_id"
    answer = client.post(where, files={"file": ("a.parquet", files.parquet(table, row_group_size=100))})
    assert answer.status_code == 202, answer.text
    assert ended(client, answer.headers["location"])["done"] == rows
    assert client.get(f"{DOCUMENTS}/d0").json()["text"] == "text 0" and stored(client) == rows


def test_wrong_rows_of_a_table_are_named_and_can_be_left_out(refuses: Refuses, client: TestClient) -> None:
    table = pyarrow.table({"id": ["a", "b", "c"], "text": ["one", None, "three"]})
    sent: dict[str, Any] = {"files": {"file": ("a.parquet", files.parquet(table))}}
    refuses((422, "Validation", "row 2.text: is required"), "POST", DOCUMENTS, **sent)
    assert stored(client) == 0
    answer = client.post(f"{DOCUMENTS}?on_error=skip", **sent).json()
    assert answer["ids"] == ["a", "c"] and [error["place"] for error in answer["errors"]] == ["row 2"]


def test_options_of_files(client: TestClient) -> None:
    path = f"{DOCUMENTS}?split=File&metadata=" + json.dumps({"team": {"name": "support"}})
    client.post(path, files={"file": ("a.md", files.MARKDOWN)}).raise_for_status()
    client.post(f"{DOCUMENTS}?metadata=" + '{"n": 1}', content=b"a line", headers=of("text/plain")).raise_for_status()
    whole, line = documents(client)
    assert (whole["id"], whole["metadata"]["team"]) == ("a.md", {"name": "support"})
    assert line["metadata"] == {"n": 1}


def test_html_names_its_charset(client: TestClient) -> None:
    page = '<meta http-equiv=content-type content="text/html; charset=windows-1251"><p>Привет'.encode("cp1251")
    client.post(DOCUMENTS, content=page, headers=of("text/html")).raise_for_status()
    client.post(DOCUMENTS, content="<p>né".encode("latin-1"), headers=of("text/html;charset=latin1")).raise_for_status()
    page = '<meta charset="utf-16"><p>中'.encode()
    client.post(DOCUMENTS, content=page, headers=of("text/html")).raise_for_status()
    assert [one["text"] for one in documents(client)] == ["Привет", "né", "中"]


def test_a_file_that_can_not_be_read_is_not_taken_for_another_format(
    refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.corpora.ingest.reading.find_spec", lambda _: None)
    sent: dict[str, Any] = {"files": {"file": ("a.md", files.MARKDOWN, "text/plain")}}
    refuses((415, "Validation", "needs the extra 'documents'"), "POST", DOCUMENTS, **sent)


REFUSALS: list[tuple[tuple[int, str, str], str, str, bytes]] = [
    ((400, "Validation", "not Parquet: it begins with b'hell'"), "", "a.parquet", b"hello"),
    ((400, "Validation", "damaged"), "", "a.parquet", files.parquet(TABLE)[:-9]),
    ((400, "Validation", "damaged"), "", "a.arrows", files.arrow(TABLE, stream=True)[:400]),
    ((422, "Validation", "img: values of the type binary"), "", "a.arrow", files.arrow(pyarrow.table({"img": [b"a"]}))),
    ((422, "Validation", "row 1.text: is required; there is no field 'text', only 'body'"), "", "a.parquet",
     files.parquet(pyarrow.table({"body": ["a"]}))),
    ((422, "Validation", "the file is encrypted"), "", "a.pdf", files.pdf([["a"]], password="x")),
    ((400, "Empty", "scanned"), "", "a.pdf", files.pdf([[]])),
    ((400, "Validation", "not UTF-8"), "", "a.md", b"\xff"),
    ((422, "Validation", "text_column: only tables"), "?text_column=a", "a.md", b"a"),
    ((422, "Validation", "column_types: only columns of CSV"), '?column_types={"a":"number"}', "a.md", b"a"),
    ((422, "Validation", "split: only Markdown"), "?split=file", "a.csv", b"text\na\n"),
    ((422, "Validation", "split"), "?split=chapter", "a.md", b"a"),
    ((422, "Validation", "metadata: must be a JSON object"), "?metadata=[1]", "a.md", b"a"),
    ((422, "Validation", "metadata: not JSON"), "?metadata={", "a.md", b"a"),
    ((422, "Validation", "metadata.n: integers"), "?metadata={\"n\":99999999999999999999}", "a.md", b"a"),
    ((422, "Validation", "source: is also a field of metadata"), '?metadata={"source":1}', "a.md", b"a"),
    ((422, "Validation", "section 1.id: must be 1 to 512 bytes"), "", f"{'a' * 520}.md", b"a"),
]  # fmt: skip


@pytest.mark.parametrize(("refusal", "query", "name", "content"), REFUSALS)
def test_refusals(
    refuses: Refuses, client: TestClient, *, refusal: tuple[int, str, str], query: str, name: str, content: bytes
) -> None:
    refuses(refusal, "POST", DOCUMENTS + query, files={"file": (name, content)})
    assert stored(client) == 0


@pytest.mark.parametrize(
    ("package", "extra", "name"),
    [
        ("pyarrow", "data", "a.parquet"),
        ("pyarrow", "data", "a.feather"),
        ("markdown_it", "documents", "a.md"),
        ("pypdf", "documents", "a.pdf"),
        ("docx", "documents", "a.docx"),
    ],
)
def test_without_its_package_a_format_is_refused_with_the_extra_to_install(
    refuses: Refuses, client: TestClient, monkeypatch: pytest.MonkeyPatch, *, package: str, extra: str, name: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    refuses((415, "Validation", f"isosphere[{extra}]"), "POST", DOCUMENTS, files={"file": (name, b"a")})


def test_a_text_of_a_table_may_be_as_long_as_of_json(refuses: Refuses, client: TestClient) -> None:
    for size, says in ((1_000_000, "1000000 bytes are more than the 999999 of one text"), (4_000_000, "of one row")):
        table = files.parquet(pyarrow.table({"text": ["a" * size]}))
        refuses((413, "Validation", says), "POST", DOCUMENTS, files={"file": ("a.parquet", table)})


# Limits of the process that reads a file.


@pytest.mark.slow
def test_a_small_file_with_many_rows_is_refused() -> None:
    table = pyarrow.table({"text": pyarrow.array(["x" * 1000] * 200_000).dictionary_encode()})
    with pytest.raises(TooLarge, match="are more than"):
        read(files.parquet(table), "parquet")


def test_a_file_that_unpacks_to_more_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MEMORY_BYTES", 100_000_000)
    content = files.parquet(pyarrow.table({"text": ["x" * 100_000_000]}), compression="zstd")
    with pytest.raises(TooLarge, match="memory"):
        read(content, "parquet")


@pytest.mark.slow
def test_a_file_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reading.CPU_SECONDS, "markdown", 1)
    with pytest.raises(TooLarge, match="the markdown takes more than 1 s"):
        read(b"*a **b `c\n\n" * 200_000, "markdown")


def test_a_reader_that_crashes_is_a_damaged_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Malformed, match="damaged"):
        read(b"a", "html")


def test_without_limits_no_file_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(resource, "setrlimit", refused)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["readers", "html", '{"memory_bytes": 1, "cpu_seconds": 1}'])
    assert main() == 1
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == Unhealthy.__name__ and "can't limit the memory" in told["error"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, str]]]:
    """Record the processes that read files, each with its environment variables."""
    begin: Any = subprocess.Popen
    begun = list[tuple[Any, dict[str, str]]]()

    def start(*command: Any, env: dict[str, str], **options: Any) -> Any:
        begun.append((begin(*command, env=env, **options), env))
        return begun[-1][0]

    monkeypatch.setattr(subprocess, "Popen", start)
    return begun


def test_whoever_reads_no_further_leaves_no_process(started: list[tuple[Any, dict[str, str]]]) -> None:
    table = files.columns(text=["x" * 1000] * 5000)
    found = reading.read(io.BytesIO(table), "parquet", SETTINGS, source="", split="section")
    assert next(found).place == "row 1" and started[0][0].returncode is None
    del found
    assert started[0][0].returncode == -signal.SIGKILL


def test_a_reader_knows_nothing_of_the_server(
    monkeypatch: pytest.MonkeyPatch, started: list[tuple[Any, dict[str, str]]]
) -> None:
    monkeypatch.setenv("ISOSPHERE_API_KEY", "secret")
    read(b"a", "html")
    assert "secret" not in started[0][1].values()
