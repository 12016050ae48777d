"""Tests of maps that a job computes, over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from serving.corpora.maps import project
from serving.corpora.snapshots import Progress
from serving.corpora.values import Blocks, Keys
from serving.errors import Stopped, TooLarge, Unhealthy, Unsupported
from serving.jobs.mapping import computed
from serving.operations.threads import CancelToken, check_cancelled
from tests.conftest import PATIENCE
from tests.serving.durability.server import home
from tests.serving.test_moving_corpora import ended

TEXTS = 40


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute maps without a process, as a rotated projection."""

    def turned(dim: int, blocks: Blocks, progress: Progress) -> tuple[Keys, Any]:
        progress.expect(10, 10)
        progress.add(10)
        keys, vectors = together(dim, blocks)
        return keys, -project(vectors).points

    monkeypatch.setattr("serving.jobs.mapping.computed", turned)


def together(dim: int, blocks: Blocks) -> tuple[Keys, Any]:
    read = list(blocks)
    keys, vectors = [some for some, _ in read], [some for _, some in read]
    return np.concatenate([np.empty(0, np.int64), *keys]), np.concatenate([np.empty((0, dim), np.float32), *vectors])


def documents(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": f"d{i}", "text": f"text {i}", "metadata": {"n": i}} for i in range(first, first + count)]


@pytest.fixture
def filled(client: TestClient) -> TestClient:
    client.put("/corpora/c")
    client.post("/corpora/c/documents", json={"documents": documents(TEXTS)}).raise_for_status()
    return client


def mapped(client: TestClient, **params: Any) -> dict[str, Any]:
    answer = client.get("/corpora/c/map", params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_without_a_job_the_map_is_a_projection_and_says_so(filled: TestClient) -> None:
    answer = mapped(filled)
    assert (answer["projection"], answer["stored"]) == ("pca", None)
    assert "POST /corpora/c/map" in answer["hint"]
    refused = filled.get("/corpora/c/map", params={"projection": "t-sne"})
    assert refused.status_code == 404 and "no stored map" in refused.json()["error"]


@pytest.mark.usefixtures("quick")
def test_a_job_stores_a_map_in_which_each_passage_is_once(filled: TestClient) -> None:
    before = mapped(filled)
    job = ended(filled, filled.post("/corpora/c/map"))
    assert (job["state"], job["kind"], job["done"], job["total"]) == ("succeeded", "map", 10, 10)
    assert job["result"] == {"points": TEXTS, "passages": TEXTS}
    answer = mapped(filled, field="n")
    assert (answer["projection"], answer["explained"], answer["hint"]) == ("t-sne", None, None)
    assert [point["id"] for point in answer["points"]] == [f"d{i}" for i in range(TEXTS)]
    assert [point["value"] for point in answer["points"]] == list(range(TEXTS))
    assert [-point["x"] for point in answer["points"]] == [point["x"] for point in before["points"]]
    created = answer["stored"].pop("created")
    assert job["started"] <= created <= job["finished"]
    assert answer["stored"] == {"current": True, "points": TEXTS, "added": 0, "removed": 0}
    assert mapped(filled, projection="pca")["points"] == before["points"]
    assert len(mapped(filled, sample=7)["points"]) == 7


@pytest.mark.usefixtures("quick")
def test_what_changes_after_a_map_is_counted(filled: TestClient) -> None:
    ended(filled, filled.post("/corpora/c/map"))
    filled.post("/corpora/c/documents", json={"documents": documents(3, TEXTS)}).raise_for_status()
    filled.post("/corpora/c/documents", json={"documents": [{"id": "d5", "text": "another"}]}).raise_for_status()
    filled.delete("/corpora/c/documents/d0").raise_for_status()
    filled.patch("/corpora/c/documents/d1", json={"metadata": {"n": "one"}}).raise_for_status()
    answer = mapped(filled, field="n")
    stored = answer["stored"]
    assert (stored["current"], stored["points"], stored["added"], stored["removed"]) == (False, TEXTS - 2, 4, 2)
    assert {"d0", "d5"}.isdisjoint(point["id"] for point in answer["points"])
    assert answer["points"][0] | {"x": 0, "y": 0} == {"id": "d1", "text": "text 1", "x": 0, "y": 0, "value": "one"}
    assert "POST /corpora/c/map" in answer["hint"]
    ended(filled, filled.post("/corpora/c/map"))
    assert mapped(filled)["stored"]["current"] and len(mapped(filled)["points"]) == TEXTS + 2


@pytest.mark.usefixtures("quick")
def test_a_document_that_expired_is_on_no_map(filled: TestClient) -> None:
    ended(filled, filled.post("/corpora/c/map"))
    past = {"documents": [{"id": "d3", "text": "text 3", "expires_at": "1999-01-31T08:30:00Z"}]}
    filled.post("/corpora/c/documents", json=past).raise_for_status()
    answer = mapped(filled)
    assert "d3" not in {point["id"] for point in answer["points"]}
    assert (answer["passages"], answer["stored"]["points"], answer["stored"]["removed"]) == (39, 39, 1)


@pytest.mark.usefixtures("quick")
def test_a_map_of_another_encoder_is_not_current(pair: TestClient) -> None:
    pair.put("/corpora/c", json={"model": "fake"})
    pair.post("/corpora/c/documents", json={"documents": documents(5)}).raise_for_status()
    ended(pair, pair.post("/corpora/c/map"))
    ended(pair, pair.post("/corpora/c/reembed", json={"model": "turned"}))
    stored = mapped(pair)["stored"]
    assert (stored["current"], stored["added"], stored["removed"]) == (False, 0, 0)


@pytest.mark.usefixtures("quick")
def test_a_snapshot_and_a_rename_carry_the_map(filled: TestClient) -> None:
    ended(filled, filled.post("/corpora/c/map"))
    before = mapped(filled)
    made = ended(filled, filled.post("/corpora/c/snapshots"))["result"]
    filled.delete("/corpora/c/documents/d0").raise_for_status()
    ended(filled, filled.put("/corpora/c/restore", json={"snapshot": made["id"]}))
    assert mapped(filled) | {"took_ms": 0} == before | {"took_ms": 0}
    filled.patch("/corpora/c", json={"name": "e"}).raise_for_status()
    assert filled.get("/corpora/e/map").json()["stored"] == before["stored"]
    filled.delete(f"/corpora/c/snapshots/{made['id']}")


@pytest.mark.usefixtures("quick")
def test_a_larger_corpus_has_a_sample_on_its_map(filled: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.corpora.maps.MAX_POINTS", 15)
    assert ended(filled, filled.post("/corpora/c/map"))["result"] == {"points": 15, "passages": TEXTS}
    answer = mapped(filled)
    assert (len(answer["points"]), answer["passages"], answer["stored"]["current"]) == (15, TEXTS, True)


@pytest.mark.usefixtures("quick")
def test_an_empty_corpus_has_an_empty_map(client: TestClient) -> None:
    client.put("/corpora/c")
    assert ended(client, client.post("/corpora/c/map"))["result"] == {"points": 0, "passages": 0}
    assert (mapped(client)["points"], mapped(client)["stored"]["current"]) == ([], True)


def test_a_map_is_cancelled_and_refused_twice(filled: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def endless(*_: Any) -> Any:
        begun.set()
        while True:
            check_cancelled()
            time.sleep(0.001)

    monkeypatch.setattr("serving.jobs.mapping.computed", endless)
    job = filled.post("/corpora/c/map").headers["location"]
    assert begun.wait(PATIENCE)
    again = filled.post("/corpora/c/map")
    assert (again.status_code, again.headers["location"]) == (409, job)
    filled.post("/corpora/c/documents", json={"documents": documents(1, 99)}).raise_for_status()
    assert filled.delete(job).json()["state"] == "cancelled"
    assert mapped(filled)["stored"] is None


def test_a_corpus_that_took_the_name_meanwhile_gets_no_map(filled: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def replacing(dim: int, blocks: Blocks, _: Progress) -> tuple[Keys, Any]:
        keys, vectors = together(dim, blocks)
        filled.delete("/corpora/c").raise_for_status()
        filled.put("/corpora/c")
        return keys, project(vectors).points

    monkeypatch.setattr("serving.jobs.mapping.computed", replacing)
    job = ended(filled, filled.post("/corpora/c/map"))
    assert job["state"] == "failed" and "compute the map again" in job["errors"][0]["error"]
    assert mapped(filled)["stored"] is None


def test_without_the_extra_the_way_is_named(
    filled: TestClient, monkeypatch: pytest.MonkeyPatch, refuses: Callable[..., None]
) -> None:
    def missing() -> None:
        raise Unsupported("pip install 'isosphere[map]'")

    monkeypatch.setattr("serving.api.maps.check_installed", missing)
    refuses((501, "Backend", "isosphere[map]"), "POST", "/corpora/c/map")
    answer = mapped(filled)
    assert (answer["projection"], len(answer["points"])) == ("pca", TEXTS)
    assert "isosphere[map]" in answer["hint"]
    monkeypatch.undo()
    refuses((404, "NotFound", "'d'"), "POST", "/corpora/d/map")


@pytest.mark.slow
def test_a_process_computes_the_map(filled: TestClient) -> None:
    job = ended(filled, filled.post("/corpora/c/map"))
    assert (job["state"], job["done"], job["total"]) == ("succeeded", 1000, 1000)
    first = mapped(filled)["points"]
    places = np.array([(point["x"], point["y"]) for point in first])
    assert np.isfinite(places).all() and len(np.unique(places, axis=0)) == TEXTS
    ended(filled, filled.post("/corpora/c/map"))
    assert mapped(filled)["points"] == first


@pytest.mark.parametrize(
    ("script", "error", "says"),
    [
        ("import os; os.kill(os.getpid(), 9)", TooLarge, "more memory"),
        ("""print('{"error": "ValueError: x"}'); raise SystemExit(1)""", Unhealthy, "ValueError: x"),
        ("raise SystemExit(3)", Unhealthy, "exit status 3"),
        ("""print('{"places": [[NaN, 0]]}')""", Unhealthy, "did not converge"),
    ],
)
def test_a_process_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: type[Exception], says: str
) -> None:
    (tmp_path / "failing.py").write_text(script)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("serving.jobs.mapping.MODULE", "failing")
    with pytest.raises(error, match=says):
        computed(300, iter([(np.arange(300), np.eye(300, dtype=np.float32))]), Progress())


@pytest.mark.slow
def test_cancelled_work_ends_its_process() -> None:
    token, progress = CancelToken(), Progress()
    vectors = np.random.default_rng(0).standard_normal((3000, 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    threading.Timer(2, token.cancel).start()
    started = time.monotonic()
    with pytest.raises(Stopped):
        token.run(lambda: computed(32, iter([(np.arange(3000), vectors)]), progress))
    assert time.monotonic() - started < 10


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_maps_computes_the_map_again(tmp_path: Path) -> None:
    at = home(tmp_path)
    with at.server() as server, server.client() as client:
        client.put("/corpora/c").raise_for_status()
        for start in range(0, 500, 250):
            some = {"documents": documents(250, start)}
            client.post("/corpora/c/documents", json=some).raise_for_status()
        job = client.post("/corpora/c/map").headers["location"]
        until = time.monotonic() + PATIENCE
        while client.get(job).json()["state"] != "running":
            assert time.monotonic() < until
            time.sleep(0.05)
        server.kill()
    with at.server() as server, server.client() as client:
        assert client.get("/corpora/c").json()["documents"] == 500
        assert client.get("/corpora/c/map").json()["stored"] is None
        while (found := client.get(job).json())["finished"] is None:
            assert time.monotonic() < until + PATIENCE, found
            time.sleep(0.1)
        assert found["state"] == "succeeded"
        stored = client.get("/corpora/c/map").json()["stored"]
        assert (stored["current"], stored["points"]) == (True, 500)
