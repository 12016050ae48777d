"""GET /corpora/{name}/map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from serving.corpora import maps
from serving.corpora.maps import sampled
from serving.corpora.stores import STORES
from tests.serving.corpora.stores.contents import content, filled


def upload(client: TestClient, documents: list[dict[str, Any]], **params: Any) -> None:
    client.put("/corpora/c")
    client.post("/corpora/c/documents", json={"documents": documents}, params=params).raise_for_status()


def test_every_passage_has_a_place(client: TestClient) -> None:
    metadata = [{"a": {"b": 1}}, {"a": {"b": ["x", 2]}}, {"a": {"b": {"c": 1}}}, {}, {"a": {"b": "y" * 300}}]
    upload(client, [{"id": f"d{i}", "text": f"text {i}", "metadata": one} for i, one in enumerate(metadata)])
    answer = client.get("/corpora/c/map", params={"field": "a.b"}).json()
    assert set(answer) == {"points", "passages", "projection", "explained", "stored", "hint", "took_ms"}
    assert [(point["id"], point["text"]) for point in answer["points"]] == [(f"d{i}", f"text {i}") for i in range(5)]
    assert [point["value"] for point in answer["points"]] == [1, "x", None, None, "y" * 100]
    assert answer["passages"] == 5
    assert 0 < sum(answer["explained"]) <= 1
    assert {point["value"] for point in client.get("/corpora/c/map").json()["points"]} == {None}


def test_a_field_that_no_document_has_is_warned_of(client: TestClient) -> None:
    upload(client, [{"text": "a", "metadata": {"year": {"of": 1}}}])
    told = client.get("/corpora/c/map", params={"field": "yaer"}).json()["warnings"]
    assert told == ["field: no document has the field 'yaer'. Did you mean 'year'?"]
    assert "warnings" not in client.get("/corpora/c/map", params={"field": "year.of"}).json()
    assert "warnings" not in client.get("/corpora/c/map").json()


def test_a_sample_is_always_the_same_and_follows_deletions(client: TestClient) -> None:
    upload(client, [{"id": f"d{i}", "text": f"text {i}"} for i in range(60)])
    first = client.get("/corpora/c/map", params={"sample": 20}).json()
    assert first["passages"] == 60 and len({point["id"] for point in first["points"]}) == 20
    assert client.get("/corpora/c/map", params={"sample": 20}).json()["points"] == first["points"]
    gone = first["points"][0]["id"]
    client.delete(f"/corpora/c/documents/{gone}")
    left = client.get("/corpora/c/map").json()
    assert left["passages"] == 59 and gone not in {point["id"] for point in left["points"]}


def test_a_passage_is_told_of_in_short(client: TestClient) -> None:
    text = " ".join(f"word{i}" for i in range(200))
    upload(client, [{"id": "long", "text": text}], chunk_tokens=20)
    points = client.get("/corpora/c/map").json()["points"]
    assert len(points) > 1 and {point["id"] for point in points} == {"long"}
    assert all(point["text"] in text for point in points) and points[0]["text"] != points[1]["text"]
    upload(client, [{"id": "long", "text": text}])
    (point,) = client.get("/corpora/c/map").json()["points"]
    assert point["text"] == text[:199] + "…"


def test_nothing_to_map(client: TestClient, refuses: Callable[..., None]) -> None:
    client.put("/corpora/c")
    answer = client.get("/corpora/c/map").json()
    assert (answer["points"], answer["passages"], answer["explained"]) == ([], 0, [0, 0])
    upload(client, [{"text": "one"}, {"text": "one"}])
    assert [(point["x"], point["y"]) for point in client.get("/corpora/c/map").json()["points"]] == [(0, 0), (0, 0)]
    refuses((404, "NotFound", "'d'"), "GET", "/corpora/d/map")
    refuses((422, "Validation", "sample"), "GET", "/corpora/c/map?sample=50001")
    refuses((422, "Validation", "sample"), "GET", "/corpora/c/map?sample=0")


@pytest.mark.parametrize("kind", STORES)
def test_a_sample_is_of_one_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    store = filled(STORES[kind](tmp_path), "c", content([(f"d{i}", "text", {}) for i in range(40)], "one"))
    told = maps._sampled_passages

    def swapped(*args: Any) -> Any:
        """The corpus moves to another encoder between its vectors and its texts."""
        monkeypatch.setattr(maps, "_sampled_passages", told)
        keys = store.keys("c")
        store.refresh("c", "two", keys, np.ones((len(keys), 3), np.float32))
        assert store.swap("c", "two")
        return told(*args)

    monkeypatch.setattr(maps, "_sampled_passages", swapped)
    found = sampled(store, "c", 30)
    assert found.vectors.shape == (30, 3) and found.of == 40
    assert replace(store.corpus("c")).fingerprint == "two"
    store.close()
