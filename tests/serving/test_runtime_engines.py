"""The real engine on a small real bundle, and the CPUs it may use."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.bundle import BundleError
from serving.app import create_app
from serving.engines import ENGINES, cpus
from serving.ports import Engine, EngineError, EngineOptions
from serving.service import Service
from serving.settings import Settings
from serving.stores import STORES


@pytest.fixture(scope="module")
def engine(tiny_bundle: Path) -> Engine:
    return ENGINES["onnxruntime"](tiny_bundle).load(EngineOptions(device="cpu"))


TEXTS = ["a dog", "the old man and the sea", "", "a", "the " * 200, "a red bird can sing in the morning"]


def test_unit_vectors_that_do_not_depend_on_the_batch(engine: Engine) -> None:
    tokens = engine.tokenize(TEXTS, "right")
    together = engine.embed(tokens)
    assert together.vectors.dtype == together.norms.dtype == np.float32
    assert np.allclose(np.linalg.norm(together.vectors, axis=1), 1, atol=1e-5)
    assert (together.norms > 0).all()
    for i, one in enumerate(tokens):
        alone = engine.embed([one])
        assert np.allclose(alone.vectors[0], together.vectors[i], atol=1e-5)
        assert alone.norms[0] == pytest.approx(together.norms[i], rel=1e-4)


def test_truncation(engine: Engine) -> None:
    (long,) = engine.tokenize(["the " * 200], "right")
    assert (long.length, len(long), long.truncated) == (202, 64, True)


def test_the_whole_server_on_it(
    tiny_bundle: Path, tmp_path: Path, wait_until_ready: Callable[[TestClient], None]
) -> None:
    model = ENGINES["onnxruntime"](tiny_bundle)
    service = Service(Settings(data=tmp_path, no_demo=True), model, STORES["sqlite"](tmp_path))
    with TestClient(create_app(service)) as client:
        wait_until_ready(client)
        golden = json.loads((tiny_bundle / "manifest.json").read_text())["golden"]
        served = np.array(client.post("/embed", json={"inputs": [one["text"] for one in golden]}).json())
        assert np.allclose(served, [one["vector"] for one in golden], atol=1e-5)
        assert client.get("/info").json()["engine"] == "onnxruntime"
        ids = client.post("/v1/embeddings", json={"input": [[2, 3], [10**6]]})
        assert (ids.status_code, ids.json()["error"]["param"]) == (400, "input.1")


def test_an_altered_bundle_is_refused_by_file(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_bundle, copy)
    with (copy / "onnx" / "model.onnx").open("ab") as graph:
        graph.write(b"x")
    with pytest.raises(BundleError, match=r"model\.onnx"):
        ENGINES["onnxruntime"](copy)


def test_cuda_where_there_is_none(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(EngineError, match="`gpu` extra"):
        ENGINES["onnxruntime"](tiny_bundle).load(EngineOptions(device="cuda"))


def cgroup(root: Path, membership: str, **files: str) -> tuple[Path, Path]:
    for path, text in files.items():
        file = root / path.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    root.mkdir(parents=True, exist_ok=True)
    (root / "membership").write_text(membership)
    return root, root / "membership"


def test_cpus_from_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    v2 = cgroup(tmp_path / "v2", "0::/a/b\n", a__cpu_dot_max="250000 100000\n", a__b__cpu_dot_max="max 100000\n")
    assert cpus.available(*v2) == 2
    quota, period = "cpu__a__cpu_dot_cfs_quota_us", "cpu__a__cpu_dot_cfs_period_us"
    v1 = cgroup(tmp_path / "v1", "4:cpu,cpuacct:/a\n2:memory:/a\n", **{quota: "50000", period: "100000"})
    assert cpus.available(*v1) == 1
    unlimited = cgroup(tmp_path / "no", "4:cpu:/a\n0::/\n", **{quota: "-1", period: "100000"})
    assert cpus.available(*unlimited) == 16
    assert cpus.available(tmp_path, tmp_path / "absent") == 16
