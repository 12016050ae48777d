"""Tests of API keys: public routes, the rights of a key, and each API family's answers to other requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from serving.api.routing.auth import scope_for
from serving.app import create_app
from serving.commands.starting import local_corpora
from serving.corpora.stores import STORES
from serving.inference.engines import ENGINES
from serving.operations.keys import Key, changed_keys, digest
from serving.service import Service
from serving.settings import Settings
from tests.conftest import PATIENCE

BEARER = {"authorization": "Bearer all"}
KEYS = {
    "all": Key(name="all", sha256=digest("all"), scopes=("read", "write", "admin")),
    "reader": Key(name="reader", sha256=digest("reader"), scopes=("read",)),
    "writer": Key(name="writer", sha256=digest("writer"), scopes=("write",)),
    "tenant": Key(name="tenant", sha256=digest("tenant"), scopes=("read", "write"), corpora=("acme-*", "shared")),
}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


def keys_in(folder: Path) -> Path:
    with changed_keys(folder / "keys.json") as keys:
        keys.extend(KEYS.values())
    return folder / "keys.json"


@pytest.fixture(scope="module")
def _guarded(
    tmp_path_factory: pytest.TempPathFactory, wait_until_ready: Callable[[TestClient], None]
) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("guarded")
    settings = Settings(data=folder, no_demo=True, engine="fake", api_keys_file=keys_in(folder))
    service = Service(settings, ENGINES["fake"](folder), local_corpora(settings, STORES["sqlite"](folder / "corpora")))
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        wait_until_ready(client)
        yield client


@pytest.fixture
def guarded(_guarded: TestClient) -> Iterator[TestClient]:
    """Yield one server for the module, without corpora at the start of each test."""
    yield _guarded
    for corpus in _guarded.get("/corpora", headers=BEARER).json()["corpora"]:
        _guarded.delete(f"/corpora/{corpus['name']}", headers=BEARER)


@pytest.mark.parametrize(
    "path", ["/", "/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics", "/docs", "/openapi.json"]
)
def test_public(guarded: TestClient, path: str) -> None:
    assert guarded.get(path).status_code == 200
    assert guarded.head(path).status_code == 200


def test_the_documentation_page_works_without_a_key_and_asks_for_one(guarded: TestClient) -> None:
    described = guarded.get("/openapi.json").json()
    assert described["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    sources = [one.split('"')[0] for one in guarded.get("/docs").text.split('src="')[1:]]
    assert sources and all(guarded.get(source).status_code == 200 for source in sources)


def test_every_other_route_needs_a_key(guarded: TestClient) -> None:
    """Test all routes in the app's own description, so that new routes are included."""
    public = {"/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics"}
    for path, methods in guarded.get("/openapi.json").json()["paths"].items():
        for method in methods:
            if path not in public:
                assert guarded.request(method, path.replace("{name}", "c")).status_code == 401, (method, path)
    assert guarded.get("/nowhere").status_code == 401


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/embed", {"error", "error_type"}),
        ("/corpora/c/search", {"error", "error_type"}),
        ("/v1/embeddings", {"error"}),
        ("/openai/deployments/fake/embeddings?api-version=2024-10-21", {"error"}),
        ("/api/embed", {"error"}),
        ("/v2/embed", {"message"}),
    ],
)
def test_no_key_in_each_family(guarded: TestClient, path: str, shape: set[str]) -> None:
    answer = guarded.post(path, json={"inputs": "a"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer" and answer.headers["x-request-id"]
    assert "Authorization: Bearer" in answer.text
    assert set(answer.json()) == shape
    if shape == {"error"} and not path.startswith("/api/"):
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("sent", ["Bearer all", "bearer all", "BEARER  all", "all", " all ", "Bearer\tall"])
def test_how_clients_send_keys(guarded: TestClient, sent: str) -> None:
    assert guarded.post("/embed", json={"inputs": "a"}, headers={"authorization": sent}).status_code == 200


@pytest.mark.parametrize("path", ["/embed", "/openai/deployments/fake/embeddings"])
def test_clients_of_azure_send_the_key_in_a_header_of_its_own(guarded: TestClient, path: str) -> None:
    def status(**headers: str) -> int:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return guarded.post(path, json={"input": "a"}, headers=sent).status_code

    assert (status(api_key="all"), status(api_key="wrong"), status(api_key="")) == (200, 401, 401)
    assert status(authorization="Bearer all", api_key="wrong") == 200
    assert status(authorization="Bearer wrong", api_key="all") == 401


@pytest.mark.parametrize(
    "sent", ["", "Bearer", "Bearer ", "Bearer al", "Bearer all2", "Basic all", "Bearer \xe9", "ALL"]
)
def test_what_is_no_key(guarded: TestClient, sent: str) -> None:
    headers = [(b"authorization", sent.encode("latin-1"))]
    assert guarded.post("/embed", json={"inputs": "a"}, headers=headers).status_code == 401


@pytest.mark.parametrize("sent", ["", "Bearer ", "Bearer whatever"])
def test_without_keys_nobody_is_asked(client: TestClient, sent: str) -> None:
    assert client.post("/embed", json={"inputs": "a"}, headers={"authorization": sent}).status_code == 200


def test_401_comes_before_the_body(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the body was read")

    monkeypatch.setattr(Request, "stream", never)
    answer = guarded.post("/embed", content=b"x" * 10**6, headers={"content-length": str(10**9)})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("name", "method", "path", "status"),
    [
        ("reader", "POST", "/embed", 200),
        ("reader", "GET", "/corpora", 200),
        ("reader", "POST", "/corpora/c/search", 404),
        ("reader", "POST", "/search", 404),
        ("reader", "PUT", "/corpora/c", 403),
        ("reader", "DELETE", "/corpora/c", 403),
        ("reader", "DELETE", "/corpora/search", 403),
        ("reader", "POST", "/corpora/c/documents", 403),
        ("reader", "DELETE", "/corpora/c/documents/search", 403),
        ("reader", "POST", "/admin/reload", 403),
        ("writer", "PUT", "/corpora/c", 201),
        ("writer", "POST", "/embed", 403),
        ("writer", "GET", "/corpora/c", 403),
        ("writer", "POST", "/admin/reload", 403),
    ],
)
def test_scopes(guarded: TestClient, name: str, method: str, path: str, status: int) -> None:
    asked = {"query": "a", "corpus": "c"} if path.endswith("/search") else {"inputs": "a"}
    body = asked if method == "POST" else None
    answer = guarded.request(method, path, json=body, headers=bearer(name))
    assert answer.status_code == status, answer.text
    if status == 403:
        needed = scope_for(method, path)
        assert answer.json() == {
            "error": f"the key {name!r} lacks the scope {needed!r}",
            "error_type": "Unauthorized",
        }


@given(st.sampled_from(["POST", "PUT", "DELETE", "PATCH"]), st.text(st.sampled_from("ab/search.%"), max_size=30))
def test_no_change_of_a_corpus_is_reading(method: str, rest: str) -> None:
    """Check that routes that change a corpus need write access. Searches are POST requests, but only read."""
    if scope_for(method, f"/corpora/{rest}") == "read":
        assert method == "POST"
        assert rest.count("/") == 1 and rest.endswith("/search")


def test_an_admin_may_reload_from_elsewhere(guarded: TestClient) -> None:
    """Reload from a client that is not on the server's machine."""
    assert guarded.post("/admin/reload", headers=BEARER | {"x-forwarded-for": "192.0.2.1"}).status_code == 200


def test_a_key_sees_its_corpora_alone(guarded: TestClient) -> None:
    for name in ("acme-1", "shared", "other"):
        guarded.put(f"/corpora/{name}", headers=BEARER).raise_for_status()
    tenant = bearer("tenant")
    listed = guarded.get("/corpora", headers=tenant).json()["corpora"]
    assert [corpus["name"] for corpus in listed] == ["acme-1", "shared"]
    assert len(guarded.get("/corpora", headers=BEARER).json()["corpora"]) == 3
    ahead = guarded.get("/corpora", params={"limit": 1, "cursor": "acme-1"}, headers=tenant).json()
    assert ([corpus["name"] for corpus in ahead["corpora"]], ahead["cursor"]) == (["shared"], None)
    assert guarded.put("/corpora/acme-2", headers=tenant).status_code == 201
    for name in ("other", "absent", "Acme-1"):
        answers = [
            guarded.get(f"/corpora/{name}", headers=tenant),
            guarded.put(f"/corpora/{name}", headers=tenant),
            guarded.delete(f"/corpora/{name}", headers=tenant),
            guarded.get(f"/corpora/{name}/documents", headers=tenant),
            guarded.get(f"/corpora/{name}/documents/a", headers=tenant),
            guarded.delete(f"/corpora/{name}/documents/a", headers=tenant),
            guarded.request("DELETE", f"/corpora/{name}/documents", json={"filter": {"a": 1}}, headers=tenant),
            guarded.post(f"/corpora/{name}/documents", json={"documents": [{"text": "a"}]}, headers=tenant),
            guarded.post(f"/corpora/{name}/search", json={"query": "a"}, headers=tenant),
            guarded.post("/search", json={"corpus": name, "query": "a"}, headers=tenant),
        ]
        says = f"the key 'tenant' has no access to the corpus {name!r}"
        assert {(answer.status_code, answer.json()["error"]) for answer in answers} == {(403, says)}, (
            "the same whether or not it is there"
        )
    assert guarded.get("/corpora/other", headers=BEARER).status_code == 200


def test_a_key_restores_snapshots_of_its_corpora_alone(guarded: TestClient) -> None:
    for name in ("shared", "other"):
        guarded.put(f"/corpora/{name}", headers=BEARER).raise_for_status()
    made = {name: snapshot(guarded, name) for name in ("shared", "other")}
    tenant = bearer("tenant")

    def restored(of: str, id: str) -> Any:
        return guarded.put("/corpora/acme-1/restore", json={"snapshot": id, "of": of}, headers=tenant)

    for of, id in (("other", made["other"]), ("other", "none"), ("absent", made["other"])):
        answer = restored(of, id)
        assert answer.status_code == 403
        assert answer.json()["error"] == f"the key 'tenant' has no access to the corpus {of!r}"
    assert guarded.get("/corpora/acme-1", headers=BEARER).status_code == 404
    assert ended(guarded, restored("shared", made["shared"]))["state"] == "succeeded"


def snapshot(client: TestClient, corpus: str) -> str:
    job = ended(client, client.post(f"/corpora/{corpus}/snapshots", headers=BEARER))
    return str(job["result"]["id"])


def ended(client: TestClient, answer: Any) -> dict[str, Any]:
    """Return the job of an answer after the job has ended."""
    deadline = time.monotonic() + PATIENCE
    while (job := client.get(answer.headers["location"], headers=BEARER).json())["finished"] is None:
        assert time.monotonic() < deadline, job
        time.sleep(0.01)
    return dict(job)


@pytest.mark.slow
def test_openai_s_client_takes_its_key(launch: Callable[..., Any], tmp_path: Path) -> None:
    import openai  # It takes half a second to import.

    keys_file = keys_in(tmp_path)
    server = launch("--api-keys-file", str(keys_file))
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="reader", max_retries=0) as known:
        assert known.embeddings.create(model="any", input="a").usage.prompt_tokens > 0
        unknown = known.with_options(api_key="nobody")
        with pytest.raises(openai.AuthenticationError, match="needs a key"):
            unknown.embeddings.create(model="any", input="a")
    with changed_keys(keys_file) as keys:
        keys.clear()
    while server.client.get("/info", headers=bearer("reader")).status_code == 200:
        pass
    assert server.client.get("/info", headers=bearer("reader")).status_code == 401, "revoked while it runs"
