"""Tests of uploads over HTTP: every format, small uploads and jobs, and idempotency keys."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.commands.destinations import Remote
from serving.corpora.ingest.uploading import Options
from serving.service import Service
from tests.serving.corpora.ingest.uploading import DOCUMENTS, FORM, NDJSON, ended, lines, of, stored

Refuses = Callable[..., None]
MakeService = Callable[..., Service]
Waits = Callable[[TestClient], None]


@pytest.fixture(autouse=True)
def corpus(client: TestClient) -> None:
    client.put("/corpora/c")


BODIES: list[tuple[str, str, bytes]] = [
    ("application/json", "a.json", b'{"documents": [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]}'),
    ("application/vnd.docs+json", "a.json", b'{"documents": [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]}'),
    ("application/x-ndjson", "a.jsonl", b'{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}'),
    ("text/csv; charset=utf-8", "a.csv", b"id,text\na,one\nb,two\n"),
    ("text/csv", "a.tsv", "\ufeffid\ttext\na\tone\nb\ttwo\n".encode()),
]


@pytest.mark.parametrize("packed", ["", "gzip", "in the file"])
@pytest.mark.parametrize(("media", "name", "body"), BODIES)
def test_formats(client: TestClient, media: str, name: str, body: bytes, packed: str) -> None:
    headers = {"content-type": media} | ({"content-encoding": "gzip"} if packed == "gzip" else {})
    answer = client.post(DOCUMENTS, content=gzip.compress(body) if packed else body, headers=headers)
    assert (answer.status_code, answer.json()["ids"]) == (200, ["a", "b"]), answer.text
    assert [one["text"] for one in client.get(DOCUMENTS).json()["documents"]] == ["one", "two"]


@pytest.mark.parametrize(("media", "name", "body"), BODIES)
@pytest.mark.parametrize("packed", [False, True])
def test_files_as_browsers_send_them(client: TestClient, media: str, name: str, body: bytes, packed: bool) -> None:
    file = (f"{name}.gz", gzip.compress(body)) if packed else (name, body)
    answer = client.post(DOCUMENTS, files={"file": (*file, "application/octet-stream")})
    assert (answer.status_code, answer.json()["count"]) == (200, 2), answer.text
    answer = client.post(DOCUMENTS, files={"file": ("blob", body, media.partition(";")[0])})
    assert answer.status_code == (415 if "+json" in media else 200), answer.text


@pytest.mark.parametrize("background", ["", "?async=true"])
@pytest.mark.parametrize("media", ["text/plain", "text/csv", "application/csv"])
def test_text_in_a_charset_that_the_type_names(
    refuses: Refuses, client: TestClient, media: str, background: str
) -> None:
    body = "text\né €\n".encode("windows-1252")
    answer = client.post(DOCUMENTS + background, content=body, headers=of(f'{media}; charset="Windows-1252"'))
    if background:
        assert ended(client, answer.headers["location"])["state"] == "succeeded"
    file = {"file": ("a.csv", body, "text/csv; charset=windows-1252")}
    client.post(DOCUMENTS, files=file).raise_for_status()
    assert [one["text"] for one in client.get(DOCUMENTS).json()["documents"]][-2:] == ["é €", "é €"]
    says = "charset: 'klingon' is not supported"
    refuses((415, "Validation", says), "POST", DOCUMENTS, content=body, headers=of(f"{media}; charset=klingon"))


@pytest.mark.parametrize("media", ["application/jsonlines", "application/jsonl", "application/x-ndjson"])
def test_names_of_json_lines(client: TestClient, media: str) -> None:
    answer = client.post(DOCUMENTS, content=b'{"id": "a", "text": "one"}\n', headers=of(media))
    assert answer.json()["ids"] == ["a"], answer.text


def test_text_is_a_document_a_line(client: TestClient) -> None:
    answer = client.post(DOCUMENTS, content=b"one\n\ntwo\r\nthree", headers={"content-type": "text/plain"})
    assert answer.json()["count"] == 3
    assert [one["text"] for one in client.get(DOCUMENTS).json()["documents"]] == ["one", "two", "three"]


JSON_BODIES = [
    ("application/json", b'{"documents": [{"text": "one"}]}'),
    ("application/json", b'[\n  {"text": "one"},\n  {"text": "two"}\n]'),
    ("application/json", b'["one", "two"]'),
    ("application/json", b'[{"text": "a",},\n{"text": "b"}]'),
    ("application/json", b'{\n  "text": "one"\n}'),
    ("application/x-ndjson", b'\n{"text": "one"}\n{"text": "two"}\n'),
    ("application/x-ndjson", b'{"text": "one", "documents": ["a"]}\n{"text": "two"}\n'),
]


@pytest.mark.parametrize("media", ["text/plain;charset=UTF-8", "Text/Plain"])
@pytest.mark.parametrize("query", ["", "?async=true"])
@pytest.mark.parametrize(("right", "body"), JSON_BODIES)
def test_json_that_is_sent_as_text_is_refused_with_the_type_to_send(
    refuses: Refuses, client: TestClient, *, right: str, body: bytes, query: str, media: str
) -> None:
    jobs = client.get("/jobs").json()
    says = f"content-type: the body is JSON: send it as {right}, not as text/plain"
    refuses((415, "Validation", says), "POST", DOCUMENTS + query, content=body, headers=of(media))
    packed = {"content": gzip.compress(body), "headers": of(media)}
    refuses((415, "Validation", says), "POST", DOCUMENTS + query, **packed)
    assert client.get("/jobs").json() == jobs and stored(client) == 0


@pytest.mark.parametrize(
    "body",
    [b"{name}, hello\n", b"[1] Smith et al.\n[2] Jones", b"[1]\nSmith", b'{"a quote"\n', b'"{}"', b"7", b"[draft]"],
)
def test_a_text_may_begin_with_a_bracket(client: TestClient, body: bytes) -> None:
    answer = client.post(DOCUMENTS, content=body, headers=of("text/plain;charset=UTF-8"))
    assert answer.json()["count"] == len(body.splitlines()), answer.text


def test_lines_of_json_are_texts_in_a_file_that_is_called_so(client: TestClient) -> None:
    line = b'{"text": "one"}'
    client.post(DOCUMENTS, files={"file": ("a.txt", line)}).raise_for_status()
    assert [one["text"] for one in client.get(DOCUMENTS).json()["documents"]] == [line.decode()]


def test_a_command_sends_lines_of_json_as_texts(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(
        _: Remote, method: str, path: str, body: Callable[[], Iterable[bytes]], headers: dict[str, str]
    ) -> tuple[int, Any]:
        answer = client.request(method, path, content=body(), headers=headers).raise_for_status()
        return answer.status_code, answer.json()

    monkeypatch.setattr(Remote, "_asked", asked)
    lines = ['{"text": "é"}', "two"]
    options = Options.of_format("text", "windows-1252", metadata={"n": 1})
    destination = Remote("http://testserver", "c", None)
    assert asyncio.run(destination.add(io.BytesIO("\n".join(lines).encode("cp1252")), options)).documents == 2
    found = client.get(DOCUMENTS).json()["documents"]
    assert [(one["text"], one["metadata"]) for one in found] == [(line, {"n": 1}) for line in lines]


@pytest.mark.parametrize("headers", [{}, {"content-type": ""}, {"content-type": " ; charset=utf-8"}])
def test_a_body_without_a_type_is_json(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.post(DOCUMENTS, content=b'[{"id": "a", "text": "one"}]', headers=headers)
    assert answer.json()["ids"] == ["a"], answer.text


def test_a_type_that_is_none_is_refused(refuses: Refuses) -> None:
    refuses((415, "Validation", "not as json"), "POST", DOCUMENTS, content=b'[{"text": "one"}]', headers=of("json"))
    refuses((415, "Validation", "not json"), "POST", "/embed", content=b'{"inputs": "a"}', headers=of("json"))


def test_columns(client: TestClient) -> None:
    body = b"key;title;year\n1;A;1999\n"
    answer = client.post(
        f"{DOCUMENTS}?text_column=title&id_column=key", content=body, headers={"content-type": "text/csv"}
    )
    assert answer.json()["ids"] == ["1"]
    assert client.get(f"{DOCUMENTS}/1").json() == {"id": "1", "text": "A", "metadata": {"year": "1999"}}


@pytest.mark.parametrize("media", ["application/json", "application/x-ndjson"])
@pytest.mark.parametrize("field", ["id", "_id"])
def test_an_integer_is_an_id_as_its_digits(client: TestClient, media: str, field: str) -> None:
    path = DOCUMENTS if field == "id" else f"{DOCUMENTS}?id_column={field}"

    def sent(*documents: dict[str, Any]) -> Any:
        body = json.dumps(documents) if media == "application/json" else "\n".join(map(json.dumps, documents))
        return client.post(path, content=body, headers=of(media)).json()

    assert sent(*({field: id, "text": "a"} for id in (5, -7, 2**64 - 1, 0)))["ids"] == ["5", "-7", str(2**64 - 1), "0"]
    assert sent({field: "5", "text": "again"})["ids"] == ["5"]
    assert client.get(f"{DOCUMENTS}/5").json()["text"] == "again" and stored(client) == 4
    again = sent({field: 8, "text": "a"}, {field: "8", "text": "b"})["error"]
    assert f".{field}: '8' is already the id of" in again or f"line 2.{field}: '8' is already the id of" in again
    for id in (5.0, 2**64, -(2**63) - 1, True, [5]):
        assert f"{field}: must be a string or an integer" in sent({field: id, "text": "a"})["error"]
    assert stored(client) == 4


@pytest.mark.parametrize("rows", [2, 300])
@pytest.mark.parametrize("types", ["auto", "AUTO", '{"n": "Number"}'])
def test_columns_have_the_types_of_their_fields_where_that_is_asked_for(
    client: TestClient, rows: int, types: str
) -> None:
    """Use a large table, whose last row also determines a type."""
    body = "id,text,n,m\n" + "".join(f"{i},text,{i},{i}\n" for i in range(rows)) + "z,text,5,five\n"
    answer = client.post(f"{DOCUMENTS}?column_types={types}", content=body, headers=of("text/csv"))
    if answer.status_code == 202:
        assert ended(client, answer.headers["location"])["state"] == "succeeded"
    assert client.get(f"{DOCUMENTS}/1").json()["metadata"] == {"n": 1, "m": "1"}
    search = {"query": "text", "filter": {"n": {"$lt": 1}}}
    assert [hit["id"] for hit in client.post("/corpora/c/search", json=search).json()["hits"]] == ["0"]


def test_a_page_of_documents_can_be_sent_to_another_corpus_as_it_is(client: TestClient) -> None:
    client.post(DOCUMENTS, json=[{"id": "a", "text": "one", "metadata": {"n": 1}}, {"text": "two"}]).raise_for_status()
    page = client.get(f"{DOCUMENTS}?limit=1")
    assert page.json()["cursor"]
    client.put("/corpora/d")
    sent = client.post("/corpora/d/documents", content=page.content, headers=of("application/json"))
    assert sent.json()["ids"] == ["a"]
    assert client.get("/corpora/d/documents/a").json() == {"id": "a", "text": "one", "metadata": {"n": 1}}


@pytest.mark.parametrize("background", ["", "&async=true"])
def test_a_line_of_beir_is_kept_whole(client: TestClient, background: str) -> None:
    line = b'{"_id": "7", "title": "Eyes", "text": "Far objects are seen.", "metadata": {"year": 1999}, "url": null}'
    answer = client.post(f"{DOCUMENTS}?id_column=_id{background}", content=line, headers=of("application/x-ndjson"))
    if background:
        assert ended(client, answer.headers["location"])["state"] == "succeeded"
    stored = client.get(f"{DOCUMENTS}/7").json()
    assert stored == {"id": "7", "text": "Far objects are seen.", "metadata": {"year": 1999, "title": "Eyes"}}
    search = {"query": "far", "filter": {"title": "Eyes"}}
    assert [hit["id"] for hit in client.post("/corpora/c/search", json=search).json()["hits"]] == ["7"]


@pytest.mark.parametrize(
    ("media", "body", "says"),
    [
        ("application/json", b'[{"_id": [5], "body": "a"}]', "documents.0._id: must be a string or an integer"),
        ("application/json", b'[{"_id": "", "body": "a"}]', "documents.0._id: must be 1 to 512 bytes"),
        ("application/json", b'[{"_id": "a", "body": 7, "text": "b"}]', "documents.0.body: must be a string"),
        ("application/json", b'[{"_id": "a", "body": null}]', "documents.0.body: is required"),
        ("application/json", b'[{"_id": "a", "body": "\\ud800"}]', "documents.0.body: not valid Unicode"),
        (
            "application/x-ndjson",
            b'{"_id": "a", "Body": "b", "n": 1}',
            "line 1.body: is required; there is no field 'body', only '_id', 'Body', 'n'. Did you mean 'Body'? "
            "Select it by ?text_column=Body (--text-column Body)",
        ),
        ("application/x-ndjson", b'{"_id": "a", "body": 7}', "line 1.body: must be a string"),
        ("application/x-ndjson", b'{"_id": "a", "body": "b", "n": NaN}', "line 1: n: numbers must be finite"),
        ("application/x-ndjson", b'{"_id": "a", "body": "b", "metadata": 1, "n": 1}', "line 1.metadata: must be an"),
        ("application/x-ndjson", b'{"_id": "a", "body": "b"}\n' * 2, "line 2._id: 'a' is already the id of line 1"),
        ("text/csv", b"_id,body\n..,a\n", "line 2._id: must not be '..'"),
        ("text/csv", b"_id,body\na,b\na,c\n", "line 3._id: 'a' is already the id of line 2"),
    ],
)
@pytest.mark.parametrize("background", ["", "&async=true"])
def test_errors_call_a_field_what_the_upload_calls_it(
    client: TestClient, media: str, body: bytes, says: str, background: str
) -> None:
    path = f"{DOCUMENTS}?id_column=_id&text_column=body{background}"
    answer = client.post(path, content=body, headers=of(media))
    if background:
        assert says in ended(client, answer.headers["location"])["errors"][0]["error"]
    else:
        assert answer.status_code == 422 and answer.json()["error"].startswith(says)


@pytest.mark.parametrize("option", ["text_column", "id_column"])
@pytest.mark.parametrize(
    "sent", [{"json": [{"text": "a"}]}, {"content": b"text\na\n", "headers": {"content-type": "text/csv"}}]
)
def test_an_option_that_names_no_column(refuses: Refuses, option: str, sent: dict[str, Any]) -> None:
    refuses((422, "Validation", f"{option}: must not be empty"), "POST", f"{DOCUMENTS}?{option}=", **sent)


@pytest.mark.parametrize(
    ("refusal", "sent"),
    [
        (
            (415, "Validation", "not as application/msword"),
            {"content": b"a", "headers": {"content-type": "application/msword"}},
        ),
        (
            (422, "Validation", "text_column: there is no column"),
            {"content": b"a\nb", "headers": {"content-type": "text/csv"}},
        ),
        ((415, "Validation", "'a.doc'"), {"files": {"file": ("a.doc", b"a")}}),
        (
            (422, "Validation", "b.txt: an upload may have only one file"),
            {"files": [("f", ("a.txt", b"a")), ("f", ("b.txt", b"b"))]},
        ),
        (
            (422, "Validation", "text_column: a form may only have a file"),
            {"data": {"text_column": "body"}, "files": {"file": ("a.csv", b"text,body\na,b\n")}},
        ),
        ((400, "Validation", "multipart/form-data has no file"), {"content": b"--x--\r\n", "headers": of(FORM)}),
        (
            (400, "Validation", "its end is missing"),
            {
                "content": b'--x\r\nContent-Disposition: form-data; name="a"; filename="a.txt"\r\n\r\nb\r\n',
                "headers": of(FORM),
            },
        ),
        ((400, "Validation", "boundary"), {"content": b"", "headers": of("multipart/form-data")}),
        (
            (400, "Validation", "not multipart/form-data"),
            {"content": b"oops" * 100, "headers": of(FORM)},
        ),
        (
            (415, "Validation", "content-encoding"),
            {
                "content": b"",
                "headers": of(FORM) | {"content-encoding": "gzip"},
            },
        ),
        ((400, "Empty", "documents: must contain"), {"content": b"\n", "headers": NDJSON}),
        ((413, "Validation", "100 times as much"), {"content": gzip.compress(b" " * 50_000_000), "headers": NDJSON}),
    ],
)
def test_refusals(refuses: Refuses, client: TestClient, refusal: tuple[int, str, str], sent: dict[str, Any]) -> None:
    refuses(refusal, "POST", DOCUMENTS, **sent)
    assert stored(client) == 0


@pytest.mark.parametrize(
    ("refusal", "query"),
    [
        ((422, "Validation", "chunk_tokens"), "chunk_tokens=15"),
        ((422, "Validation", "chunk_overlap: must be between 0 and half"), "chunk_tokens=20&chunk_overlap=11"),
        ((422, "Validation", "chunk_overlap: is only allowed together with chunk_tokens"), "chunk_overlap=11"),
        ((422, "Validation", "chunk_tokens: the encoder of the corpus reads"), "chunk_tokens=100000"),
        ((422, "Validation", "column_types: must be header, auto, or a JSON object"), "column_types=guess"),
        ((422, "Validation", "types are auto, string, number, boolean, date"), 'column_types={"n": "time"}'),
        ((422, "Validation", "column_types: only columns of CSV"), 'column_types={"n": "number"}'),
        ((422, "Validation", "async: must be true or false"), "async=maybe"),
        ((422, "Validation", "chunk_tokens: must be an integer"), "chunk_tokens=many"),
    ],
)
def test_bad_options(refuses: Refuses, refusal: tuple[int, str, str], query: str) -> None:
    refuses(refusal, "POST", f"{DOCUMENTS}?{query}", content=b'{"text": "a"}', headers=NDJSON)


def test_a_corpus_that_is_not_there_is_told_before_the_body_is_looked_at(refuses: Refuses) -> None:
    refuses((404, "NotFound", "'nowhere'"), "POST", "/corpora/nowhere/documents", content=b"{oops", headers=NDJSON)


def test_long_texts_are_cut_into_passages(client: TestClient) -> None:
    text = " ".join(f"Sentence {i} is here." for i in range(200)) + " The whale is found at the end."
    answer = client.post(
        f"{DOCUMENTS}?chunk_tokens=32&chunk_overlap=8", json={"documents": [{"id": "a", "text": text}]}
    )
    assert (answer.status_code, answer.headers["x-truncated-inputs"]) == (200, "0")
    hit = client.post("/corpora/c/search", json={"query": "The whale is found at the end.", "k": 1}).json()["hits"][0]
    assert hit["id"] == "a"
    assert stored(client) == 1


@pytest.mark.slow
def test_a_long_upload_is_bounded(
    make_service: Callable[..., Service], wait_until_ready: Callable[[TestClient], None]
) -> None:
    with TestClient(create_app(make_service(max_upload_bytes=100_000, max_body_bytes=1000))) as client:
        wait_until_ready(client)
        client.put("/corpora/c")
        assert client.post(DOCUMENTS, content=lines(50), headers=NDJSON).status_code == 200, "beyond max_body_bytes"
        long = b'{"text": "%s"}\n' % (b"a" * 900)
        assert client.post(DOCUMENTS, content=long * 3, headers=NDJSON).status_code == 202, "too much to wait for"
        answer = client.post(DOCUMENTS, content=lines(20_000), headers=NDJSON)
        assert (answer.status_code, "at most 100000" in answer.text) == (413, True)
        pieces = (lines(100) for _ in range(1000))
        assert client.post(DOCUMENTS, content=pieces, headers=NDJSON).status_code == 413, "chunked, without a length"
        location = client.post(DOCUMENTS, content=gzip.compress(lines(20_000)), headers=NDJSON).headers["location"]
        assert "unpacks to more than the 100000" in ended(client, location)["errors"][0]["error"]
