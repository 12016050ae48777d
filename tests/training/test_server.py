"""Tests of the evaluation of a server: its answers and its failures."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from training.cli import evaluate, main
from training.cli.evaluate import _command
from training.cli.options import parse
from training.evaluation import beir
from training.evaluation import server as evaluation_server
from training.evaluation.beir import Collection
from training.evaluation.server import Server
from training.evaluation.subjects import Subject, SubjectError, _served, open_subject
from training.evaluation.vectors import EvaluationError

COLLECTION = Collection({"d": "a cat", "e": "a dog"}, {"q": "the cat"}, {"q": {"d": 1}})


def server(answer: Callable[[httpx.Request], httpx.Response]) -> Server:
    return Server("http://encoder/", transport=httpx.MockTransport(answer))


def test_a_server_of_another_make_answers_in_numbers() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/info":
            return httpx.Response(200, json={"model_id": "other"})
        inputs = json.loads(request.content)["inputs"]
        return httpx.Response(200, json=[[len(text), 0.5] for text in inputs])

    texts = ["a" * n for n in range(1, 80)]
    np.testing.assert_array_equal(server(answer).encode(texts), [[len(text), 0.5] for text in texts])


@pytest.mark.parametrize("url", ["http://eve:s3cret@encoder/", "http://eve:s3cret@encoder:8080"])
def test_the_password_of_a_url_is_sent_and_neither_kept_nor_printed(url: str) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["authorization"])
        if request.url.path == "/info":
            return httpx.Response(200, json={"model_id": "other"})
        if request.url.path == "/embed":
            raise httpx.ConnectError("no eve:s3cret@encoder")
        return httpx.Response(401, text="s3cret is wrong")

    named = Server(url, transport=httpx.MockTransport(answer))
    judged = _served(named)
    for fails in (lambda: judged.encode(["a"]), lambda: named.rankings(COLLECTION)):
        with pytest.raises(EvaluationError, match=r"^http://encoder") as raised:
            fails()
        assert not re.search("s3cret|eve", str(raised.value))
    assert set(asked) == {"Basic ZXZlOnMzY3JldA=="}
    assert judged.facts["source"] == url.replace("eve:s3cret@", "").rstrip("/")
    command = _command(parse(["evaluate", url, "--data", "data"]))
    assert "http://encoder" in command and not re.search("s3cret|eve", command)


@pytest.mark.parametrize("key", ["s3cret\n", "s3cr\u00e9t", "s3cret ", "s3c\x00ret"])
@pytest.mark.parametrize("by_option", [True, False])
def test_a_key_that_no_header_takes_is_refused_and_not_printed(
    key: str, by_option: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["evaluate", "http://encoder", "--data", "data"]
    if by_option:
        arguments += ["--key", key]
    else:
        monkeypatch.setattr(os, "environ", {**os.environ, "ISOSPHERE_API_KEY": key})
    with pytest.raises(SystemExit, match=r"^2$"):
        main(arguments)
    said = capsys.readouterr().err
    assert "argument --key: expected printable ASCII" in said and said.count("\n") == 1
    assert "s3c" not in said


def test_a_user_and_a_key_can_t_both_be_sent() -> None:
    with pytest.raises(SubjectError, match=r"^http://encoder: a user in the URL and a key"):
        open_subject("http://eve:pass@encoder", key="iso_key")


@pytest.mark.parametrize("scheme", ["http", "HTTP"])
@pytest.mark.parametrize("options", [{}, {"by_torch": True}])
def test_the_password_of_a_url_that_is_none_is_not_printed(scheme: str, options: dict[str, Any]) -> None:
    with pytest.raises((EvaluationError, SubjectError), match=f"^{scheme}://encoder") as raised:
        open_subject(f"{scheme}://eve:s3cr/et@encoder", key=None, **options)
    assert not re.search("s3cr|et@|eve", str(raised.value))


def test_scores_of_a_server_are_recorded_in_no_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "http://eve:s3cret@encoder", "--data", "data", "--record"]) == 2
    said = capsys.readouterr().err
    assert "http://encoder is not the folder of an adapter" in said and not re.search("s3cret|eve", said)


def test_a_busy_server_is_asked_again() -> None:
    answers = iter([(429, "0"), (503, "Wed, 21 Oct 2015 07:28:00 GMT"), (200, "0")])

    def answer(request: httpx.Request) -> httpx.Response:
        status, pause = next(answers)
        return httpx.Response(status, json={}, headers={"retry-after": pause})

    assert server(answer).info == {}
    assert next(answers, None) is None


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0], [1.0]], "different widths, 1 and 2"),
        ([{"a": 1}, {"a": 2}], "no vector for 'first': neither base64"),
        ([[1.0], ["1.0"]], "no vector for 'second': neither base64"),
        ([[1.0], [None]], "no vector for 'second': neither base64"),
        ([[], []], "no vector for 'first': it is empty"),
        (["AACA*Pw==", "AACAPw=="], "no vector for 'first'"),
        (["AACAPw==", "AAA="], "no vector for 'second'"),
        ([[10**400], [1]], "no vector for 'first'"),
        ([[1.0]], "2 texts sent, but the answer has another number"),
        ({"embeddings": []}, "2 texts sent, but the answer has another number"),
    ],
)
def test_what_is_no_vector_is_named(vectors: Any, message: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={} if request.url.path == "/info" else vectors)

    with pytest.raises(EvaluationError, match=f"http://encoder/embed: .*{message}"):
        server(answer).encode(["first", "second"])


def test_base64_and_numbers_are_read() -> None:
    asked: list[list[str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/info":
            return httpx.Response(200, json={})
        asked.append(json.loads(request.content)["inputs"])
        return httpx.Response(200, json=["AACAPwAAAEA=", [3, 1e300]])

    np.testing.assert_array_equal(server(answer).encode(["", "a"]), [[1, 2], [3, np.inf]])
    assert asked == [["", "a"]]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            {"POST": httpx.Response(500, text="full"), "DELETE": httpx.Response(500, text="locked")},
            "documents: 500 full",
        ),
        ({"search": httpx.Response(200, json=[])}, "search: the answer has no hits"),
        ({"search": httpx.Response(200, json={"results": []})}, "search: 1 queries gave 0 results"),
        ({"DELETE": httpx.Response(500, text="locked")}, "evaluation-[0-9a-f]*: 500 locked"),
    ],
)
def test_a_search_that_fails_says_what_mattered(
    answers: dict[str, httpx.Response], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        last = request.url.path.rsplit("/", 1)[-1]
        default = {"results": [{"hits": [{"id": "d"}]}]} if last == "search" else {}
        return answers.get(last) or answers.get(request.method) or httpx.Response(200, json=default)

    with pytest.raises(EvaluationError, match=message):
        server(answer).rankings(COLLECTION)
    assert ("500 locked" in caplog.text) == ("POST" in answers)


@pytest.mark.parametrize("end", ["succeeded", "failed"])
def test_documents_of_a_job_are_stored_before_they_are_searched(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_server, "PAUSE", 0.0)
    states, asked = iter(["running", end]), list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path.rsplit('/', 1)[-1]}")
        if asked[-1] == "POST documents":
            return httpx.Response(202, json={"id": "j1", "state": "queued"})
        if asked[-1] == "GET j1":
            errors = [{"place": "1", "error": "the disk is full"}]
            return httpx.Response(200, json={"id": "j1", "state": next(states), "errors": errors})
        return httpx.Response(200, json={"results": [{"hits": [{"id": "d"}]}]})

    if end == "succeeded":
        assert server(answer).rankings(COLLECTION) == {"q": ["d"]}
    else:
        with pytest.raises(EvaluationError, match=r"j1 has the state 'failed'\. the disk is full"):
            server(answer).rankings(COLLECTION)
    assert asked[2:5] == ["POST documents", "GET j1", "GET j1"]
    assert ("POST search" in asked) == (end == "succeeded") and asked[-1].startswith("DELETE")


def test_sigterm_ends_an_evaluation_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    def encode(texts: Sequence[str]) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return np.ones((len(texts), 2), dtype=np.float32)

    beir.save(COLLECTION, tmp_path / "retrieval" / "zoo")
    judged = Subject({"engine": "none", "precision": "fp32"}, encode, close=lambda: closed.append(True))
    monkeypatch.setattr(evaluate, "open_subject", lambda *_, **__: judged)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main(["evaluate", "minilm", "--data", str(tmp_path), "--tasks", "retrieval"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert closed == [True]


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(500, text="broken"), "/info: 500 broken"),
        (httpx.Response(200, text="<html>"), "/info: the answer is not JSON"),
        (httpx.Response(200, json=[1]), r"/info: expected an object, got \[1\]"),
        (httpx.Response(200, text="null"), "/info: expected an object, got null"),
        (httpx.Response(200, json={"model_type": "bert"}), '/info: model_type is "bert", not an object'),
        (httpx.Response(200, json={"model_type": {"embedding": "mean"}}), '/info: model_type embedding is "mean"'),
        (httpx.Response(200, json={"dim": "wide"}), '/info: dim is "wide", not a whole number'),
        (httpx.Response(503, headers={"retry-after": "-1"}), "/info: 503 with Retry-After '-1'"),
        (httpx.Response(503, headers={"retry-after": "soon"}), "/info: 503 with Retry-After 'soon'"),
        (httpx.Response(503, headers={"retry-after": "nan"}), "/info: 503 with Retry-After 'nan'"),
        (httpx.Response(503, headers={"retry-after": "1000"}, text="later"), "/info: 503 later"),
        (httpx.Response(503, headers={"retry-after": "Fri, 31 Dec 2999 23:59:59 GMT"}, text="x"), "/info: 503 x"),
    ],
)
def test_a_server_that_fails_is_named(response: httpx.Response, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        server(lambda _request: response)
