"""Tests of aliases of corpora, and of renaming corpora, over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from serving.__main__ import main
from serving.app import create_app
from serving.corpora.aliases import ALIASES, MAX_ALIASES, Aliases
from serving.corpora.ports import StoreError
from serving.errors import Conflict, InsufficientStorage, NotFound
from serving.operations.keys import Key, changed_keys, digest
from serving.service import Service
from tests.serving.conftest import Command
from tests.serving.test_moving_corpora import ended

MakeService = Callable[..., Service]
Refuses = Callable[..., None]


@pytest.fixture
def two(client: TestClient) -> TestClient:
    for name in ("old", "new"):
        client.put(f"/corpora/{name}").raise_for_status()
        client.post(f"/corpora/{name}/documents", json=[{"id": name, "text": f"{name} text"}]).raise_for_status()
    return client


def first(client: TestClient, name: str) -> str:
    hits = client.post(f"/corpora/{name}/search", json={"query": "text"}).json()["hits"]
    return str(hits[0]["id"])


@pytest.mark.backends
def test_an_alias_switches_from_one_corpus_to_another(two: TestClient) -> None:
    assert two.put("/aliases/live", json={"corpus": "old"}).status_code == 201
    assert first(two, "live") == "old"
    switched = two.put("/aliases/live", json={"corpus": "new"})
    assert (switched.status_code, switched.json()) == (200, {"alias": "live", "corpus": "new"})
    assert first(two, "live") == "new"
    assert two.get("/aliases").json() == {"aliases": [{"alias": "live", "corpus": "new"}]}
    assert two.delete("/aliases/live").status_code == 204
    assert two.get("/corpora/live").status_code == 404
    assert two.get("/corpora/new").status_code == 200


@pytest.mark.backends("sqlite")
def test_routes_take_an_alias_for_a_name(two: TestClient) -> None:
    two.put("/aliases/live", json={"corpus": "new"}).raise_for_status()
    assert two.get("/corpora/live").json()["name"] == "new"
    assert two.put("/corpora/live", json={"description": "mine"}).status_code == 200
    assert two.get("/corpora/new").json()["description"] == "mine"
    job = ended(two, two.post("/corpora/live/documents?async=true", json=[{"id": "b", "text": "more"}]))
    assert (job["state"], job["corpus"]) == ("succeeded", "new")
    assert [one["id"] for one in two.get("/jobs?corpus=live").json()["jobs"]] == [job["id"]]
    assert two.get("/corpora/live/documents/b").json()["text"] == "more"
    found = two.post("/search", json={"corpus": "live", "query": "more"}).json()["hits"]
    assert found == two.post("/corpora/new/search", json={"corpus": "live", "query": "more"}).json()["hits"]
    several = two.post("/search", json={"corpora": ["old", "live"], "query": "more"}).json()["hits"]
    assert {hit["corpus"] for hit in several} == {"old", "new"}
    assert two.post("/search", json={"corpora": ["new", "live"], "query": "more"}).status_code == 422
    made = ended(two, two.post("/corpora/live/snapshots"))["result"]
    restored = two.put("/corpora/live/restore", json={"snapshot": made["id"], "of": "live"})
    assert ended(two, restored)["state"] == "succeeded"


def test_what_an_alias_may_not_be(two: TestClient, refuses: Refuses) -> None:
    refuses((409, "Conflict", "'old' is already the name of a corpus"), "PUT", "/aliases/old", json={"corpus": "new"})
    refuses((404, "NotFound", "'nowhere'"), "PUT", "/aliases/live", json={"corpus": "nowhere"})
    refuses((422, "Validation", "alias"), "PUT", "/aliases/.x", json={"corpus": "new"})
    refuses((422, "Validation", "corpus"), "PUT", "/aliases/x", json={"corpus": "/"})
    refuses((404, "NotFound", "'live'"), "DELETE", "/aliases/live")
    two.put("/aliases/live", json={"corpus": "new"}).raise_for_status()
    two.put("/aliases/alive", json={"corpus": "live"}).raise_for_status()
    two.put("/aliases/live", json={"corpus": "old"}).raise_for_status()
    assert two.get("/corpora/alive").json()["name"] == "new"


def test_an_alias_of_a_corpus_that_is_gone_leads_nowhere(two: TestClient) -> None:
    two.put("/aliases/live", json={"corpus": "new"}).raise_for_status()
    two.delete("/corpora/live").raise_for_status()
    gone = two.get("/corpora/live")
    assert (gone.status_code, gone.json()["error"]) == (404, "there is no corpus 'new'")
    assert two.put("/aliases/live", json={"corpus": "old"}).status_code == 200
    assert first(two, "live") == "old"


KEYS = {
    "all": Key(name="all", sha256=digest("all"), scopes=("read", "write")),
    "tenant": Key(name="tenant", sha256=digest("tenant"), scopes=("read", "write"), corpora=("acme-*",)),
    "reader": Key(name="reader", sha256=digest("reader"), scopes=("read",), corpora=("acme-*", "secret")),
}


@pytest.fixture
def guarded(
    make_service: MakeService, tmp_path: Path, wait_until_ready: Callable[[TestClient], None]
) -> Iterator[Callable[..., tuple[int, str]]]:
    with changed_keys(tmp_path / "keys.json") as keys:
        keys.extend(KEYS.values())
    with TestClient(create_app(make_service(api_keys_file=tmp_path / "keys.json"))) as client:
        wait_until_ready(client)

        def ask(key: str, method: str, path: str, body: object = None) -> tuple[int, str]:
            answer = client.request(method, path, json=body, headers={"authorization": f"Bearer {key}"})
            return answer.status_code, answer.text

        for name in ("secret", "acme-a"):
            assert ask("all", "PUT", f"/corpora/{name}")[0] == 201
        yield ask


def test_an_alias_leads_no_key_to_a_corpus_that_it_may_not_see(guarded: Callable[..., tuple[int, str]]) -> None:
    assert guarded("all", "PUT", "/aliases/acme-live", {"corpus": "secret"})[0] == 201
    assert guarded("all", "PUT", "/aliases/hidden", {"corpus": "acme-a"})[0] == 201
    for method, path, body in (
        ("GET", "/corpora/acme-live", None),
        ("POST", "/corpora/acme-live/search", {"query": "a"}),
        ("POST", "/search", {"corpus": "acme-live", "query": "a"}),
        ("POST", "/search", {"corpora": ["acme-a", "acme-live"], "query": "a"}),
        ("DELETE", "/corpora/acme-live", None),
        ("PUT", "/corpora/acme-a/restore", {"snapshot": "x", "of": "acme-live"}),
        ("GET", "/jobs?corpus=acme-live", None),
        ("PUT", "/aliases/acme-live", {"corpus": "acme-a"}),
        ("DELETE", "/aliases/acme-live", None),
        ("PUT", "/aliases/acme-b", {"corpus": "secret"}),
        ("PUT", "/aliases/acme-b", {"corpus": "acme-live"}),
        ("PATCH", "/corpora/acme-a", {"name": "acme-live"}),
        ("PATCH", "/corpora/acme-a", {"name": "mine"}),
        ("GET", "/corpora/hidden", None),
    ):
        status, text = guarded("tenant", method, path, body)
        assert (status, "secret" in text and "secret" not in str(body)) == (403, False), (method, path, text)
    assert json.loads(guarded("tenant", "GET", "/aliases")[1]) == {"aliases": []}
    assert guarded("reader", "GET", "/corpora/acme-live")[0] == 200
    assert guarded("reader", "PUT", "/aliases/acme-live", {"corpus": "acme-a"})[0] == 403
    assert guarded("tenant", "PUT", "/aliases/acme-b", {"corpus": "acme-a"})[0] == 201
    assert "acme-b" in guarded("tenant", "GET", "/aliases")[1]


def test_aliases_outlive_the_server(tmp_path: Path) -> None:
    file = tmp_path / "aliases.json"
    aliases = Aliases(file)
    assert (aliases.set("a", "one"), aliases.set("b", "one"), aliases.set("a", "two")) == (True, True, False)
    aliases.follow("one", "renamed")
    assert Aliases(file).listing() == aliases.listing() == {"a": "two", "b": "renamed"}
    aliases.delete("b")
    assert Aliases(file).corpora.get("b", "b") == "b"
    with pytest.raises(NotFound):
        aliases.delete("b")
    for i in range(MAX_ALIASES):
        aliases.corpora[f"n{i}"] = "one"
    with pytest.raises(Conflict, match="which is the maximum"):
        aliases.set("more", "one")
    file.write_text('{"a": "../b"}')
    with pytest.raises(StoreError, match=r"aliases\.json"):
        Aliases(file)


# Renaming.


def test_a_corpus_is_renamed(two: TestClient, refuses: Refuses) -> None:
    two.put("/aliases/live", json={"corpus": "old"}).raise_for_status()
    assert two.patch("/corpora/old", json={"name": "old"}).raise_for_status().json()["name"] == "old"
    refuses((409, "Conflict", "there is already a corpus 'new'"), "PATCH", "/corpora/old", json={"name": "new"})
    refuses((409, "Conflict", "'live' is an alias"), "PATCH", "/corpora/new", json={"name": "live"})
    refuses((404, "NotFound", "'nowhere'"), "PATCH", "/corpora/nowhere", json={"name": "x"})
    refuses((422, "Validation", "name"), "PATCH", "/corpora/old", json={"name": "../x"})
    renamed = two.patch("/corpora/live", json={"name": "older"})
    assert (renamed.status_code, renamed.json()["name"], renamed.json()["documents"]) == (200, "older", 1)
    assert two.get("/corpora/old").status_code == 404
    assert first(two, "older") == first(two, "live") == "old"
    two.post("/corpora/older/documents", json=[{"id": "b", "text": "one more"}]).raise_for_status()
    assert two.put("/corpora/old").status_code == 201
    assert two.get("/corpora/old").json()["documents"] == 0
    assert two.get("/corpora/older").json()["documents"] == 2


def test_a_rename_on_a_full_disk_changes_nothing(
    two: TestClient, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise InsufficientStorage("aliases.json: no space is left")

    two.put("/aliases/live", json={"corpus": "old"}).raise_for_status()
    with monkeypatch.context() as full:
        full.setattr(Aliases, "_replace", fail)
        refuses((507, "Unhealthy", "no space is left"), "PATCH", "/corpora/old", json={"name": "older"})
    assert first(two, "live") == first(two, "old") == "old"
    assert two.get("/corpora/older").status_code == 404


@pytest.mark.slow
def test_requests_during_renames_succeed_or_get_a_404(two: TestClient) -> None:
    two.put("/aliases/live", json={"corpus": "old"}).raise_for_status()
    stored, wrong = set[str](), list[str]()
    ended_all = threading.Event()

    def ask(worker: int) -> None:
        for number in count():
            if ended_all.is_set():
                return
            id, name = f"{worker}-{number}", ("live", "old", "renamed")[number % 3]
            if worker % 2:
                answer = two.post(f"/corpora/{name}/search", json={"query": "text", "k": 3, "mode": "hybrid"})
                complete = answer.status_code == 200 and len(answer.json()["hits"]) >= 1
            else:
                answer = two.post(f"/corpora/{name}/documents", json=[{"id": id, "text": f"text {id}"}])
                complete = answer.status_code == 200
                stored.update([id] if complete else [])
            if not complete and (answer.status_code, answer.json().get("error_type")) != (404, "NotFound"):
                wrong.append(f"{answer.status_code} {answer.text}")

    workers = [threading.Thread(target=ask, args=[worker]) for worker in range(4)]
    for worker in workers:
        worker.start()
    for _ in range(15):
        for name, to in (("old", "renamed"), ("renamed", "old")):
            two.patch(f"/corpora/{name}", json={"name": to}).raise_for_status()
            time.sleep(0.02)
    ended_all.set()
    for worker in workers:
        worker.join()
    assert not wrong
    listed, cursor = set[str](), None
    while True:
        query = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
        page = two.get("/corpora/live/documents", params=query).raise_for_status().json()
        listed |= {document["id"] for document in page["documents"]}
        if (cursor := page["cursor"]) is None:
            break
    assert listed == stored | {"old"} and stored
    assert two.get("/corpora/old").json()["documents"] == len(listed)


@pytest.mark.slow
def test_commands_take_an_alias(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "text": "one text"}')
    assert command("ingest", str(tmp_path / "rows.jsonl"), "--corpus", "first") == 0
    Aliases(tmp_path / "var" / ALIASES).set("live", "first")
    (tmp_path / "rows.jsonl").write_text('{"id": "b", "text": "two text"}')
    assert command("ingest", str(tmp_path / "rows.jsonl"), "--corpus", "live") == 0
    capsys.readouterr()
    assert command("search", "text", "--corpus", "live", "--json") == 0
    assert {json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()} == {"a", "b"}
    assert command("export", "--corpus", "live") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert command("verify", "--corpus", "live") == 0
    assert capsys.readouterr().out.startswith("first: whole, 2 documents")
    place = tmp_path / "var"
    assert main(["copy", f"{place}#live", f"{place}#copy"]) == 0
    assert main(["copy", f"{place}#copy", f"{place}#live"]) == 2
    assert f"{place}#first: exists and has 2 documents" in capsys.readouterr().err
    assert main(["copy", f"{place}#first", f"{place}#live"]) == 2
    assert "source and copy are the same corpus" in capsys.readouterr().err


@pytest.mark.backends("milvus")
def test_milvus_has_aliases_in_place_of_new_names(two: TestClient, refuses: Refuses) -> None:
    refuses((422, "Validation", "PUT /aliases/{alias}"), "PATCH", "/corpora/old", json={"name": "older"})
