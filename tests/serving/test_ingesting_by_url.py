"""Tests of `isosphere ingest --url` if answers are lost, or a proxy does not reach the server."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from fastapi.testclient import TestClient

from serving.commands import destinations
from serving.commands.destinations import Remote
from serving.commands.folder import Folder
from serving.corpora.ingest.uploading import Options
from serving.errors import TooLarge
from tests.conftest import PATIENCE
from tests.serving.conftest import Command
from tests.serving.test_ingesting_folders import prepare, write

URL = "http://proxy"


class Proxy:
    """A proxy before the server. It loses one answer, or answers one request itself with a status of its own."""

    def __init__(self, client: TestClient) -> None:
        self._client = client
        self._beginning, self._status, self._headers = "", 0, Message()
        self.asked = list[str]()
        """Method and path of each request."""

    def fail(self, beginning: str, status: int = 0, *, retry_after: str | None = None) -> None:
        """Fail the next request that begins so. Without a status, the answer of the server is lost."""
        self._beginning, self._status = beginning, status
        self._headers = Message()
        if retry_after is not None:
            self._headers["retry-after"] = retry_after

    def open(self, request: urllib.request.Request, **_: Any) -> Any:
        asked = f"{request.get_method()} {request.full_url.removeprefix(URL)}"
        self.asked.append(asked)
        fails = bool(self._beginning) and asked.startswith(self._beginning)
        if fails:
            self._beginning = ""
        if fails and self._status:
            raise HTTPError(request.full_url, self._status, "Bad", self._headers, io.BytesIO(b"<html>"))
        sent: Any = request.data
        body = sent.read() if hasattr(sent, "read") else sent
        answer = self._client.request(*asked.split(" ", 1), content=body, headers=dict(request.headers))
        if fails:
            raise ConnectionResetError("reset by peer")
        if answer.is_error:
            raise HTTPError(request.full_url, answer.status_code, "Bad", Message(), io.BytesIO(answer.content))
        opened: Any = io.BytesIO(answer.content)
        opened.status = answer.status_code
        return opened


@pytest.fixture
def proxy(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    proxy = Proxy(client)
    monkeypatch.setattr(destinations.OPENER, "open", proxy.open)
    monkeypatch.setattr(destinations, "POLL_SECONDS", 0.01)
    return proxy


def documents(client: TestClient, corpus: str = "c") -> int:
    return int(client.get(f"/corpora/{corpus}/documents?limit=0").json()["count"])


def rows(path: Path, count: int) -> str:
    path.write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(count)))
    return str(path)


@pytest.mark.parametrize("status", [0, 502, 503, 504, 429])
def test_a_job_is_followed_although_a_request_for_it_fails(
    client: TestClient, proxy: Proxy, command: Command, tmp_path: Path, status: int
) -> None:
    proxy.fail("GET /jobs/", status)
    assert command("ingest", rows(tmp_path / "a.jsonl", 300), "--corpus", "c", "--url", URL) == 0
    assert documents(client) == 300


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_request_that_is_refused_for_the_moment_is_repeated_when_the_server_says(
    client: TestClient, proxy: Proxy, command: Command, tmp_path: Path, name: str
) -> None:
    proxy.fail("POST", 429, retry_after="0")
    assert command("ingest", rows(tmp_path / name, 3), "--corpus", "c", "--url", URL) == 0
    assert documents(client) == 3 and len([one for one in proxy.asked if one.startswith("POST")]) == 2


def test_the_same_command_again_follows_the_job_that_the_server_runs(
    client: TestClient, proxy: Proxy, command: Command, tmp_path: Path
) -> None:
    file = rows(tmp_path / "a.jsonl", 3000)
    proxy.fail("GET /jobs/", 401)
    assert command("ingest", file, "--corpus", "c", "--url", URL) != 0
    assert command("ingest", file, "--corpus", "c", "--url", URL) == 0
    assert documents(client) == 3000


@pytest.mark.parametrize(("fails", "status"), [("POST", 0), ("POST", 502), ("POST", 504), ("GET /jobs/", 401)])
def test_a_corpus_stays_where_something_may_have_been_stored(
    client: TestClient, proxy: Proxy, command: Command, tmp_path: Path, *, fails: str, status: int
) -> None:
    proxy.fail(fails, status)
    assert command("ingest", rows(tmp_path / "a.jsonl", 3), "--corpus", "c", "--url", URL) != 0
    assert client.get("/corpora/c").status_code == 200
    assert not [one for one in proxy.asked if one.startswith("DELETE")]


def test_a_missing_key_is_an_error_that_names_the_variable(
    proxy: Proxy, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.fail("PUT", 401)
    assert command("ingest", rows(tmp_path / "a.jsonl", 3), "--corpus", "c", "--url", URL) != 0
    assert "ISOSPHERE_API_KEY" in capsys.readouterr().err


def test_a_corpus_that_another_client_has_filled_stays(
    client: TestClient, proxy: Proxy, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def filled(*_: object, **__: object) -> bool:
        client.put("/corpora/c")
        client.post("/corpora/c/documents", json=[{"text": "of another client"}])
        return True

    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": 7}\n')
    assert command("ingest", str(bad), "--corpus", "c", "--url", URL) == 1
    assert client.get("/corpora/c").status_code == 404
    monkeypatch.setattr(Remote, "create", filled)
    assert command("ingest", str(bad), "--corpus", "c", "--url", URL) == 1
    assert documents(client) == 1


def test_a_refusal_is_read_although_the_server_closed_the_connection_before_the_end_of_the_body(tmp_path: Path) -> None:
    file = tmp_path / "a.ndjson"
    file.write_bytes(b'{"text": "a"}\n' * 2_000_000)  # more than the buffers of both sockets hold

    def refuse(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            answer = b'{"error": "the corpus is full", "error_type": "TooLarge"}'
            connection.sendall(b"HTTP/1.1 413 .\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))

    with socket.create_server(("127.0.0.1", 0)) as listening, file.open("rb") as opened, ThreadPoolExecutor() as pool:
        listening.settimeout(PATIENCE)
        refused = pool.submit(refuse, listening)
        there = Remote(f"http://127.0.0.1:{listening.getsockname()[1]}", "c", None)
        with pytest.raises(TooLarge, match="the corpus is full"):
            asyncio.run(there.add(opened, Options.of_file(file)))
        refused.result()


@pytest.mark.parametrize("count", [3, 300])
def test_rows_without_ids_are_stored_once_although_the_answer_was_lost(
    client: TestClient, proxy: Proxy, tmp_path: Path, count: int
) -> None:
    write(tmp_path / "a.txt", "".join(f"text {i}\n" for i in range(count)))

    async def follow() -> None:
        there = Remote(URL, "c", None)
        await there.create(None)
        watching = Folder(tmp_path, there, prepare)
        proxy.fail("POST")
        assert len((await watching.synchronise()).failed) == 1
        assert (await watching.synchronise()).documents == documents(client) == count
        (tmp_path / "a.txt").unlink()
        assert (await watching.synchronise()).removed == 1
        write(tmp_path / "a.txt", "".join(f"text {i}\n" for i in range(count)))
        assert (await watching.synchronise()).documents == documents(client) == count, "stored again after its removal"

    asyncio.run(follow())


def test_what_a_lost_answer_has_stored_goes_with_the_next_content(
    client: TestClient, proxy: Proxy, tmp_path: Path
) -> None:
    write(tmp_path / "a.txt", "old\n")
    write(tmp_path / "b.txt", "old\n")

    async def follow() -> None:
        there = Remote(URL, "c", None)
        await there.create(None)
        watching = Folder(tmp_path, there, prepare)
        for name in ("a.txt", "b.txt"):
            proxy.fail("POST")
            await watching.synchronise()
            write(tmp_path / name, "new\n", age=5)
        (tmp_path / "b.txt").unlink()
        await watching.synchronise()
        assert [one["text"] for one in client.get("/corpora/c/documents").json()["documents"]] == ["new"]

    asyncio.run(follow())


@pytest.mark.parametrize("status", [408, 502, 503, 504, 520])
def test_a_file_is_tried_again_where_the_server_was_not_reached(
    client: TestClient, proxy: Proxy, tmp_path: Path, status: int
) -> None:
    write(tmp_path / "a.txt", "one\n")

    async def follow() -> None:
        there = Remote(URL, "c", None)
        await there.create(None)
        watching = Folder(tmp_path, there, prepare)
        for failing in ("POST", "DELETE"):
            proxy.fail(failing, status)
            assert len((await watching.synchronise()).failed) == 1
            assert (await watching.synchronise()).added == 1
            assert documents(client) == 1
            write(tmp_path / "a.txt", "two\n", age=5)

    asyncio.run(follow())
