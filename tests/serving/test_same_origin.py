"""Tests of pages of other origins, and of the requests that browsers send for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.operations.keys import Key, changed_keys, digest
from serving.service import Service

Serve = Callable[..., TestClient]
EVIL = "https://evil.example"
OWN = {"host": "localhost:8000", "origin": "http://localhost:8000"}
PROXIED = {"host": "upstream:80", "origin": "https://search.example"}


def write(client: TestClient, **headers: str) -> int:
    return client.put("/corpora/c", headers=headers).status_code


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({}, True),
        (OWN, True),
        (OWN | {"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        (PROXIED | {"sec-fetch-site": "same-origin"}, True),
        (PROXIED | {"x-forwarded-host": "search.example"}, True),
        (PROXIED, False),
        (OWN | {"origin": EVIL}, False),
        (OWN | {"origin": "http://localhost:8001"}, False),
        (OWN | {"origin": "null"}, False),
        (OWN | {"origin": "http://[::1"}, False),
        (OWN | {"origin": EVIL, "sec-fetch-site": "cross-site"}, False),
        (OWN | {"sec-fetch-site": "same-site"}, False),
    ],
)
def test_what_other_pages_send_changes_nothing(client: TestClient, headers: dict[str, str], own: bool) -> None:
    assert client.get("/corpora", headers=headers).status_code == 200
    assert write(client, **headers) == (201 if own else 403)
    assert (client.get("/corpora/c").status_code == 200) is own


def test_a_form_of_another_page_stores_nothing(client: TestClient, refuses: Callable[..., None]) -> None:
    """Send a simple request, which browsers allow without asking."""
    client.put("/corpora/c").raise_for_status()
    sent = {"content": b"spam", "headers": {"origin": EVIL, "content-type": "text/plain"}}
    refuses((403, "Unauthorized", f"Origin: web pages of '{EVIL}'"), "POST", "/corpora/c/documents", **sent)
    assert client.get("/corpora/c").json()["documents"] == 0


@pytest.fixture
def serve(make_service: Callable[..., Service], wait_until_ready: Callable[[TestClient], None]) -> Iterator[Serve]:
    with ExitStack() as running:

        def serve(address: str = "http://127.0.0.1:8000", **settings: object) -> TestClient:
            client = running.enter_context(TestClient(create_app(make_service(**settings)), base_url=address))
            wait_until_ready(client)
            return client

        yield serve


@pytest.mark.parametrize("allowed", [EVIL, "*"])
def test_an_origin_that_was_let_in_is_in(serve: Serve, allowed: str) -> None:
    assert write(serve(cors_origin=allowed), origin=EVIL, **{"sec-fetch-site": "cross-site"}) == 201


def test_a_name_that_leads_here_is_not_this_machine_s(serve: Serve) -> None:
    """Refuse such a name, because a page with this name could read everything."""
    client = serve()
    for host in ("localhost:8000", "127.0.0.1", "127.0.0.2:1", "[::1]:8000", "demo.localhost"):
        assert client.get("/corpora", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", "localhost.evil.example:8000", "10.0.0.1", "[::1"):
        answer = client.get("/corpora", headers={"host": host})
        assert answer.status_code == 403, host
        assert answer.json()["error"].startswith("Host: a server without API keys accepts the hosts localhost")


@pytest.mark.parametrize("settings", [{"insecure": True}, {"address": "http://192.0.2.1"}])
def test_where_others_are_let_in_the_server_has_any_name(serve: Serve, settings: dict[str, Any]) -> None:
    assert serve(**settings).get("/corpora", headers={"host": "search.example"}).status_code == 200


def test_keys_are_enough(serve: Serve, tmp_path: Path) -> None:
    with changed_keys(tmp_path / "keys.json") as keys:
        keys.append(Key(name="all", sha256=digest("secret"), scopes=("read", "write")))
    client = serve(api_keys_file=tmp_path / "keys.json")
    assert write(client, origin=EVIL, host="evil.example", authorization="Bearer secret") == 201
    assert write(client, origin=EVIL) == 401
