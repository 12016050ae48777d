"""Tests of the log: one line for each request, and nothing that a caller sent."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from fastapi.testclient import TestClient

from models.bundle.tokenizer import Tokens
from serving.app import create_app
from serving.inference.fake_engine import FakeEngine
from serving.operations import logs
from serving.operations.keys import Key, changed_keys, digest
from serving.service import Health, Service
from tests.serving.engines import model

Wait = Callable[[TestClient], None]
CLIENTS = [logging.getLogger(name) for name in ("httpx", "httpx2")]
Keyed = Callable[[Key], AbstractContextManager[TestClient]]
Written = Callable[..., io.StringIO]
SECRET = "zebra"


class Quoting(FakeEngine):
    """Engine that passes the self-test and then fails with an error that quotes its input."""

    def tokenize(self, texts: Sequence[str], direction: Any) -> list[Tokens]:
        if any(SECRET in text and "fail" in text for text in texts):
            raise RuntimeError(f"can't read {texts}")
        return super().tokenize(texts, direction)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """Send the log to a stream, and return the stream."""
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    handlers, level, its = root.handlers[:], root.level, uvicorn.level

    def configured(form: logs.LogFormat, terminal: bool = False) -> io.StringIO:
        stream = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        logs.configure(form)
        for client in CLIENTS:  # These loggers belong to clients in this process.
            monkeypatch.setattr(client, "disabled", True)
        return stream

    yield configured
    root.handlers[:] = handlers
    root.setLevel(level)
    uvicorn.setLevel(its)


def lines(stream: io.StringIO, logger: str = "serving.access") -> list[dict[str, Any]]:
    found = map(json.loads, stream.getvalue().splitlines())
    return [line for line in found if line["logger"] == logger]


@pytest.fixture
def keyed(make_service: Callable[..., Service], wait_until_ready: Wait, tmp_path: Path) -> Keyed:
    """Return a server with one key."""

    @contextmanager
    def keyed(key: Key) -> Iterator[TestClient]:
        with changed_keys(tmp_path / "keys.json") as keys:
            keys.append(key)
        service = make_service(model(lambda _: Quoting()), api_keys_file=tmp_path / "keys.json")
        with TestClient(create_app(service)) as client:
            wait_until_ready(client)
            yield client

    return keyed


def test_a_line_for_each_request(keyed: Keyed, written: Written) -> None:
    with keyed(Key(name="search", sha256=digest("s"), scopes=("read",))) as client:
        stream = written("json")
        bearer = {"authorization": "s"}
        client.post("/embed", json={"inputs": "a"}, headers=bearer | {"x-request-id": "mine"})
        client.get("/corpora/private-name/documents/private-id", headers=bearer)
        client.get("/corpora/private-name/documents?cursor=private", headers=bearer)
        client.put("/corpora/c", headers=bearer)
        client.post("/embed", json={"inputs": "a"})
        client.get("/private-path", headers=bearer)
        client.head("/info", headers=bearer)
    told = lines(stream)
    assert [(line["method"], line["route"], line["status"], line["key"]) for line in told] == [
        ("POST", "/embed", 200, "search"),
        ("GET", "/corpora/{name}/documents/{id:any}", 404, "search"),
        ("GET", "/corpora/{name}/documents", 422, "search"),
        ("PUT", None, 403, "search"),
        ("POST", None, 401, None),
        ("GET", None, 404, "search"),
        ("HEAD", "/info", 200, "search"),
    ]
    assert told[0]["request_id"] == "mine" and len({line["request_id"] for line in told}) == 7
    assert all(line["ms"] >= 0 and line["level"] == "info" and line["time"] for line in told)
    assert "private" not in stream.getvalue()


def test_probes_have_a_line_where_something_is_wrong(
    make_service: Callable[..., Service], wait_until_ready: Wait, written: Written
) -> None:
    service = make_service()
    probes = ("/livez", "/readyz", "/health", "/ping", "/metrics")
    with TestClient(create_app(service)) as client:
        wait_until_ready(client)
        stream = written("json")
        assert {client.get(path).status_code for path in probes} == {200}
        assert lines(stream) == []
        service.health = Health("failed", "the disk is gone")
        for path in probes:
            client.get(path)
    assert [(line["route"], line["status"]) for line in lines(stream)] == [
        ("/readyz", 503),
        ("/health", 503),
        ("/ping", 503),
    ]


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_no_text_and_no_key_is_in_the_log(
    keyed: Keyed, written: Written, monkeypatch: pytest.MonkeyPatch, form: logs.LogFormat
) -> None:
    """Search the log for a secret.

    The secret is in texts, ids, names, metadata, paths, queries, headers and keys, both right and wrong, and in the
    messages of exceptions.
    """
    stream = written(form)
    with keyed(Key(name="all", sha256=digest(f"{SECRET}-key"), scopes=("read", "write"))) as client:
        key = {"authorization": f"Bearer {SECRET}-key"}
        document = {"id": SECRET, "text": f"a {SECRET}", "metadata": {SECRET: SECRET}}

        def ask(method: str, path: str, body: Any = None, headers: dict[str, str] = key) -> int:
            return client.request(method, path, json=body, headers=headers).status_code

        assert ask("POST", "/embed", {"inputs": SECRET}) == 200
        assert ask("POST", "/v1/embeddings", {"input": SECRET}) == 200
        assert ask("PUT", f"/corpora/{SECRET}", {"description": SECRET}) == 201
        assert ask("POST", f"/corpora/{SECRET}/documents", {"documents": [document]}) == 200
        assert ask("POST", f"/corpora/{SECRET}/search", {"query": SECRET}) == 200
        assert ask("GET", f"/corpora/{SECRET}/documents/{SECRET}") == 200
        assert ask("POST", "/embed", {"inputs": SECRET}, {"authorization": f"Bearer wrong-{SECRET}"}) == 401
        assert ask("POST", f"/corpora/{SECRET}/documents?on_error={SECRET}", {"documents": [{"text": 1}]}) == 422
        assert ask("POST", "/embed", {"inputs": "a", "prompt_name": SECRET}) == 422
        assert ask("GET", f"/{SECRET}?key={SECRET}") == 404
        assert ask("POST", "/embed", {"inputs": "a"}, key | {"x-request-id": f"{SECRET} with spaces"}) == 200
        assert client.post("/embed", content=f'{{"{SECRET}'.encode(), headers=key).status_code == 400
        assert ask("POST", "/embed", {"inputs": f"{SECRET} fail"}) in (424, 500)

        def broken(*_: object, **__: object) -> None:
            try:
                raise KeyError(SECRET)
            except KeyError:
                raise RuntimeError(SECRET) from ValueError(SECRET)

        monkeypatch.setattr("serving.service.Service.embed", broken)
        assert ask("POST", "/embed", {"inputs": SECRET}) == 500
    told = stream.getvalue()
    assert SECRET not in told
    assert "builtins.ValueError" in told and "builtins.RuntimeError" in told and "in broken" in told
    assert told.count("status") >= 14


def test_json_is_one_object_a_line(written: Written) -> None:
    stream = written("json")
    logging.getLogger("a").warning("two\nlines and %s", "é")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line) | {"time": ""} == {
        "time": "",
        "level": "warning",
        "logger": "a",
        "message": "two\nlines and é",
    }


def test_pretty_is_the_message(written: Written) -> None:
    stream = written("pretty")
    logging.getLogger("a").info("said", extra={"fields": {"status": 200, "key": None}})
    logging.getLogger("a").debug("not said")
    assert stream.getvalue() == "said status=200\n"


def test_auto_is_pretty_on_a_terminal_alone(written: Written) -> None:
    stream = written("auto")
    logging.getLogger("a").info("said")
    assert json.loads(stream.getvalue())["message"] == "said"
    stream = written("auto", terminal=True)
    logging.getLogger("a").info("said")
    assert stream.getvalue() == "said\n"


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("form", ["json", "pretty"])
def test_what_nobody_awaits_is_logged_without_what_it_quotes(
    written: Written, new_loop: Callable[[], asyncio.AbstractEventLoop], form: logs.LogFormat
) -> None:
    stream = written(form)

    async def fail() -> None:
        raise ValueError(SECRET)

    def called(text: str) -> None:
        raise KeyError(text)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(logs.loop_failed)
        loop.call_soon(called, SECRET)
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        del task
        gc.collect(1)  # Only the task is young, not all imported objects.

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    told = stream.getvalue()
    assert SECRET not in told
    assert "Task exception was never retrieved" in told and "builtins.ValueError" in told and "in fail" in told
    assert "Exception in callback" in told and "builtins.KeyError" in told and "in called" in told


def test_a_line_that_utf_8_cannot_hold_is_written_all_the_same(written: Written) -> None:
    stream = written("json")
    logging.getLogger("a").error("can't read %s", os.fsdecode(b"bundle-\xff"), extra={"fields": {"key": "\ud800"}})
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["message"], line["key"]) == ("can't read bundle-\\udcff", "\\ud800")
