"""Tests of encoders that are added, removed and replaced while requests continue."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.commands.starting import local_corpora
from serving.corpora.stores import STORES
from serving.errors import Forbidden, NotFound, Unhealthy
from serving.inference.embeddings import EmbedOptions
from serving.inference.engine import EngineError, Model
from serving.inference.fake_engine import FakeEngine
from serving.service import Service
from serving.settings import Settings
from tests.serving.conftest import LOCAL, Gate
from tests.serving.shelf import Shelf, embedded, fingerprints, models

JSON = {"content-type": "application/json"}
Run = Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]


def test_one_is_reloaded_and_the_other_left_alone(pair: TestClient, shelf: Shelf) -> None:
    shelf.holds = {"fake": shelf.named("other", "fake-4"), "turned": shelf.named("turned", "fake-3")}
    answer = pair.post("/admin/reload", params={"model": "turned"})
    assert (answer.status_code, answer.json()) == (200, {"old": "fake-2", "new": "fake-3"})
    assert fingerprints(pair) == {"fake": "fake-1", "turned": "fake-3"}
    assert pair.post("/admin/reload", params={"model": "x"}).status_code == 404


def test_all_are_reloaded_or_none(pair: TestClient, shelf: Shelf) -> None:
    def no_cuda(_: object) -> FakeEngine:
        raise EngineError("no CUDA")

    turned = shelf.holds["turned"]
    shelf.holds["fake"] = shelf.named("other", "fake-3")
    for broken, status, says in (
        (lambda: replace(turned(), load=no_cuda), 424, "turned: no CUDA"),
        (shelf.named("other", "fake-4"), 409, "have the same name 'other'"),
    ):
        shelf.holds["turned"] = broken
        refused = pair.post("/admin/reload")
        assert refused.status_code == status and says in refused.json()["error"]
        assert fingerprints(pair) == {"fake": "fake-1", "turned": "fake-2"}
    del shelf.holds["turned"]
    assert pair.post("/admin/reload").status_code == 422
    shelf.holds["turned"] = shelf.named("turned", "fake-4")
    answer = pair.post("/admin/reload").json()
    assert answer == {"old": "fake-1", "new": "fake-3", "others": {"turned": {"old": "fake-2", "new": "fake-4"}}}
    assert fingerprints(pair) == {"other": "fake-3", "turned": "fake-4"}


def test_one_more_is_loaded_and_from_then_on_names_count(
    shelf: Shelf, wait_until_ready: Callable[[TestClient], None]
) -> None:
    with TestClient(create_app(shelf.service("fake")), client=LOCAL) as client:
        wait_until_ready(client)
        assert client.post("/embed", json={"inputs": "a", "model": "turned"}).headers["x-model-fingerprint"] == "fake-1"
        answer = client.post("/admin/models", json={"bundle": str(shelf.folder / "turned")})
        assert (answer.status_code, answer.json()) == (201, {"id": "turned", "fingerprint": "fake-2"})
        assert client.post("/embed", json={"inputs": "a", "model": "turned"}).headers["x-model-fingerprint"] == "fake-2"
        assert client.post("/embed", json={"inputs": "a", "model": "x"}).status_code == 404
        assert client.delete("/admin/models/turned%0A").status_code == 404, "a line end makes it another name"
        assert client.delete("/admin/models/turned").status_code == 204
        assert client.post("/embed", json={"inputs": "a", "model": "turned"}).status_code == 404, "not another's vector"
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200


def test_what_is_not_loaded(pair: TestClient, shelf: Shelf, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (shelf.folder / "link").symlink_to(elsewhere)
    shelf.holds |= {"elsewhere": shelf.named("e", "fake-9"), "link": shelf.named("e", "fake-9")}
    shelf.holds |= {"copy": shelf.named("turned", "fake-9")}
    for folder, status, says in (
        (elsewhere, 403, f"bundles must be in {shelf.folder}"),
        (shelf.folder / ".." / "elsewhere", 403, "bundles must be in"),
        (shelf.folder / "link", 403, "bundles must be in"),
        (shelf.folder, 403, "bundles must be in"),
        (shelf.folder / "absent", 422, "bundle: "),
        ("\0", 422, "bundle: is not a path"),
        ("\ud800", 422, "bundle: "),
        (shelf.folder / "copy", 409, "have the same name 'turned'"),
    ):
        refused = pair.post("/admin/models", content=json.dumps({"bundle": str(folder)}), headers=JSON)
        assert refused.status_code == status and says in refused.json()["error"], refused.text
    assert pair.post("/admin/models", json={}).status_code == 422
    named = pair.post("/admin/models", json={"bundle": str(shelf.folder / "copy"), "name": "other"})
    assert named.status_code == 422 and named.json()["error"].startswith("name: is not a field")
    assert (
        pair.post("/admin/models", json={"bundle": str(elsewhere)}, headers={"origin": "http://x"}).status_code == 403
    )
    assert models(pair) == ["fake", "turned"]


def test_what_is_not_unloaded(pair: TestClient) -> None:
    assert pair.delete("/admin/models/fake").status_code == 409
    assert pair.delete("/admin/models/x").status_code == 404
    assert pair.delete("/admin/models/turned", headers={"x-forwarded-for": "127.0.0.1"}).status_code == 403
    assert models(pair) == ["fake", "turned"]


def test_a_bundle_beside_the_root_of_the_file_system_lends_no_folder(shelf: Shelf, run: Run) -> None:
    settings = Settings(bundle="/fake", data=shelf.folder, no_demo=True, engine="fake")
    service = Service(settings, shelf.bundles.fake, local_corpora(settings, STORES["memory"](shelf.folder)))

    async def work() -> None:
        await service.loaded.wait()
        with pytest.raises(Forbidden, match=re.escape(f"must be in {settings.adapted}:")):
            await service.encoders.add(shelf.folder / "turned")

    run(service, work)


def test_requests_finish_on_a_model_that_is_unloaded(shelf: Shelf, run: Run) -> None:
    gate = threading.Event()
    gate.set()
    gated = replace(shelf.bundles.fake.manifest, name="gated", fingerprint="fake-5")
    shelf.holds["gated"] = lambda: Model(gated, lambda _: Gate(gate))
    service = shelf.service("fake", "gated", threads=2)  # The gate takes one of the permits.

    async def work() -> None:
        await service.loaded.wait()
        gate.clear()
        encoder = service.encoders.named("gated").ready_embedder
        begun = asyncio.create_task(service.embed(["a b c d"] * 500, EmbedOptions(), model="gated"))
        await asyncio.sleep(0.05)
        service.encoders.remove("gated")
        with pytest.raises(NotFound, match="this server runs 'fake'"):
            await service.embed(["a"], EmbedOptions(), model="gated")
        assert (await service.embed(["a"], EmbedOptions())).manifest.fingerprint == "fake-1"
        assert not begun.done()
        gate.set()
        assert np.allclose((await begun).vectors, np.repeat(embedded("a b c d"), 500, axis=0), atol=1e-6)
        await asyncio.wait(service.encoders._retiring)
        with pytest.raises(Unhealthy):
            await encoder.batcher.submit([])

    run(service, work)
