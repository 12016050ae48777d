"""Tests of HTTP features of every route: HEAD, OPTIONS, pages of other origins, deadlines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.operations.keys import Key, changed_keys, digest
from serving.service import Service
from serving.settings import SettingsError, read_settings
from tests.serving.engines import Gate, model

Wait = Callable[[TestClient], None]
PAGE = "https://app.example.org"


@pytest.mark.parametrize("path", ["/", "/info", "/health", "/v1/models", "/models/fake", "/corpora", "/openapi.json"])
def test_head_is_get_without_its_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    for header in ("content-type", "content-length"):
        assert head.headers[header] == get.headers[header]


def test_head_of_what_is_only_posted(client: TestClient) -> None:
    assert client.head("/embed").status_code == 405
    assert client.head("/nowhere").status_code == 404


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/embed", "POST, OPTIONS"),
        ("/", "GET, POST, HEAD, OPTIONS"),
        ("/v1/models", "GET, HEAD, OPTIONS"),
        ("/admin/reload", "POST, OPTIONS"),
        ("/docs", "GET, HEAD, OPTIONS"),
        ("/static-offline-docs/swagger-ui.css", "GET, HEAD, OPTIONS"),
        ("/corpora", "GET, HEAD, OPTIONS"),
        ("/corpora/c", "GET, PUT, PATCH, DELETE, HEAD, OPTIONS"),
        ("/corpora/c/search", "GET, POST, HEAD, OPTIONS"),
        ("/corpora/c/documents", "GET, POST, PATCH, DELETE, HEAD, OPTIONS"),
        ("/corpora/c/documents/a", "GET, PATCH, DELETE, HEAD, OPTIONS"),
    ],
)
def test_the_methods_of_a_path_are_told(client: TestClient, path: str, allow: str) -> None:
    answer = client.options(path)
    assert (answer.status_code, answer.content, answer.headers["allow"]) == (204, b"", allow)
    for method in {"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"} - set(allow.split(", ")):
        refused = client.request(method, path)
        assert (refused.status_code, refused.headers["allow"]) == (405, allow), method


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
def test_no_method_of_a_path_that_is_none(client: TestClient, method: str) -> None:
    for path in ("/nowhere", "/corpora/c/nothing"):
        assert client.request(method, path).status_code == 404, path


def test_other_origins_are_off_by_default(client: TestClient) -> None:
    answer = client.post("/embed", json={"inputs": "a"}, headers={"origin": PAGE})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    preflight = client.options("/embed", headers={"origin": PAGE, "access-control-request-method": "POST"})
    assert not [name for name in preflight.headers if name.startswith("access-control")]


@pytest.fixture
def paged(make_service: Callable[..., Service], tmp_path: Path, wait_until_ready: Wait) -> Iterator[TestClient]:
    with changed_keys(tmp_path / "keys.json") as keys:
        keys.append(Key(name="page", sha256=digest("secret"), scopes=("read",)))
    service = make_service(api_keys_file=tmp_path / "keys.json", cors_origin=f"{PAGE}, http://localhost:3000")
    with TestClient(create_app(service)) as client:
        wait_until_ready(client)
        yield client


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE"])
def test_a_preflight_is_answered_without_a_key(paged: TestClient, method: str) -> None:
    asked = {
        "origin": PAGE,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type,x-request-id,x-timeout-ms,x-stainless-lang",
    }
    answer = paged.options("/corpora/c/search", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert method in answer.headers["access-control-allow-methods"]
    for header in asked["access-control-request-headers"].split(","):
        assert header in answer.headers["access-control-allow-headers"], "a * would leave out Authorization"


def test_a_page_may_read_answers_and_refusals(paged: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    headers = {"origin": PAGE, "authorization": "Bearer secret"}
    answers = [
        paged.post("/embed", json={"inputs": "a"}, headers=headers),
        paged.post("/embed", json={"inputs": "a"}, headers={"origin": PAGE}),
        paged.post("/embed", content=b"{", headers=headers),
        paged.get("/nowhere", headers=headers),
    ]
    monkeypatch.setattr("serving.service.Service.embed", broken)
    answers.append(paged.post("/embed", json={"inputs": "a"}, headers=headers))
    assert [answer.status_code for answer in answers] == [200, 401, 400, 404, 500]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-expose-headers"] == "*"
        assert "Origin" in answer.headers["vary"]
        assert answer.headers["x-request-id"]
        assert "access-control-allow-credentials" not in answer.headers


def test_a_page_of_another_origin_may_not(paged: TestClient) -> None:
    other = {"origin": "https://app.example.org.evil.test", "access-control-request-method": "POST"}
    preflight = paged.options("/embed", headers=other)
    assert preflight.status_code == 400 and "access-control-allow-origin" not in preflight.headers
    answer = paged.post("/embed", json={"inputs": "a"}, headers=other | {"authorization": "Bearer secret"})
    assert "access-control-allow-origin" not in answer.headers


def test_an_origin_may_be_written_in_upper_case() -> None:
    assert read_settings(["--cors-origin", "HTTPS://App.example.org"]).cors_origins == ("https://app.example.org",)


@pytest.mark.parametrize(
    "origin", ["app.example.org", "https://a.test/", "https://a.test,b.test", "https://u@a.test", "https://*.a.test"]
)
def test_what_is_no_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(SettingsError, match=r"--cors-origin: .* is not an origin"):
        read_settings(["--cors-origin", origin])


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
def test_a_deadline_that_passes_is_a_504_and_its_work_is_dropped(
    make_service: Callable[..., Service], wait_until_ready: Wait, path: str
) -> None:
    engine = Gate()
    engine.open.set()
    with TestClient(create_app(make_service(model(lambda _: engine)))) as client, ThreadPoolExecutor(1) as pool:
        wait_until_ready(client)
        engine.open.clear()
        engine.embedded.clear()
        first = pool.submit(client.post, "/embed", json={"inputs": "first"})
        while "isosphere_queued_tokens 0.0" in client.get("/metrics").text:
            assert not first.done()
        body = {"inputs": ["late"] * 7, "input": ["late"] * 7}
        late = client.post(path, json=body, headers={"x-timeout-ms": "50"})
        assert late.status_code == 504 and "50 ms of x-timeout-ms" in late.text
        error = late.json()["error"]
        assert (error["type"] if path.startswith("/v1") else late.json()["error_type"]) in (
            "server_error",
            "Overloaded",
        )
        engine.open.set()
        assert first.result().status_code == 200
        assert client.post("/embed", json={"inputs": "after"}, headers={"x-timeout-ms": "20000"}).status_code == 200
    assert engine.embedded == [1, 1], "the seven never reached the engine"


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "soon", "", "9" * 10])
def test_bad_deadlines(refuses: Callable[..., None], given: str) -> None:
    refusal = (422, "Validation", "x-timeout-ms: must be a whole number")
    refuses(refusal, "POST", "/embed", json={"inputs": "a"}, headers={"x-timeout-ms": given})
