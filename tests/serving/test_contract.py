"""Tests of the routes and options: they are those of the contract, and each is documented."""

from __future__ import annotations

import re

from fastapi.testclient import TestClient

from serving.settings import Settings

ROUTES = {
    "/": {"post"},
    "/embed": {"post"},
    "/embed_all": {"post"},
    "/predict": {"post"},
    "/similarity": {"post"},
    "/invocations": {"post"},
    "/models/{id}/pipeline/feature-extraction": {"post"},
    "/models/{id}/pipeline/sentence-similarity": {"post"},
    "/rerank": {"post"},
    "/tokenize": {"post"},
    "/decode": {"post"},
    "/v1/rerank": {"post"},
    "/v2/rerank": {"post"},
    "/v2/embed": {"post"},
    "/v1/embeddings": {"post"},
    "/openai/deployments/{id}/embeddings": {"post"},
    "/api/embed": {"post"},
    "/api/embeddings": {"post"},
    "/api/tags": {"get"},
    "/api/show": {"post"},
    "/api/version": {"get"},
    "/v1/models": {"get"},
    "/v1/models/{id}": {"get"},
    "/info": {"get"},
    "/health": {"get"},
    "/livez": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/ping": {"get"},
    "/metrics": {"get"},
    "/models/{id}/report": {"get"},
    "/admin/reload": {"post"},
    "/admin/models": {"post"},
    "/admin/models/{id}": {"delete"},
    "/corpora": {"get"},
    "/aliases": {"get"},
    "/aliases/{alias}": {"put", "delete"},
    "/corpora/{name}": {"put", "get", "patch", "delete"},
    "/corpora/{name}/adapt": {"post"},
    "/corpora/{name}/documents": {"post", "get", "patch", "delete"},
    "/corpora/{name}/documents/{id}": {"get", "patch", "delete"},
    "/corpora/{name}/fields": {"get"},
    "/corpora/{name}/map": {"get", "post"},
    "/corpora/{name}/reembed": {"post"},
    "/corpora/{name}/restore": {"put"},
    "/corpora/{name}/search": {"get", "post"},
    "/corpora/{name}/snapshots": {"get", "post"},
    "/corpora/{name}/snapshots/{id}": {"get", "delete"},
    "/jobs": {"get"},
    "/jobs/{id}": {"get", "delete"},
    "/jobs/{id}/events": {"get"},
    "/search": {"post"},
}
BODILESS = {"/admin/reload", "/corpora/{name}/map", "/corpora/{name}/snapshots"}
"""Routes whose POST requests have no body."""


def test_every_route_is_in_the_contract_and_described(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {path: set(methods) for path, methods in paths.items()} == ROUTES
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert operation.get("summary") and operation.get("description"), (method, path)
            reads = (method in ("post", "put", "patch") and path not in BODILESS) or (
                method == "delete" and path.endswith("documents")
            )
            assert ("requestBody" in operation) == reads, (method, path)


def test_raw_bytes_are_documented(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path in ("/embed", "/", "/invocations", "/v1/embeddings"):
        answer = paths[path]["post"]["responses"]["200"]
        assert set(answer["content"]) == {"application/json", "application/octet-stream"}
        assert answer["content"]["application/json"]["schema"]
        assert "x-embedding-shape" in answer["headers"]


def test_aliases_without_v1(client: TestClient) -> None:
    assert (
        client.post("/embeddings", json={"input": "a"}).json()
        == client.post("/v1/embeddings", json={"input": "a"}).json()
    )
    assert client.get("/models").json() == client.get("/v1/models").json()


def test_documentation_page(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert sources and all(client.get(source).status_code == 200 for source in sources), "nothing from elsewhere"


def test_every_option_is_described() -> None:
    assert all(option.description for option in Settings.model_fields.values())
