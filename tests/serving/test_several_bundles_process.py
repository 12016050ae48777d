"""Test of a server process with several bundles, which are used while one is reloaded and one is added and removed."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from models.bundle import bundle
from models.runtimes.graph import Graph
from tests.conftest import PATIENCE, WORDS
from tests.serving.conftest import Launcher
from tests.serving.processes import refused

TEXTS = [" ".join(WORDS[i : i + 1 + i % 30]) for i in range(20)]


@pytest.mark.slow
def test_no_request_fails_while_models_come_go_and_are_replaced(
    launch: Launcher, tmp_path: Path, tiny_bundle: Path, other_bundle: Path
) -> None:
    folders = {"tiny": tmp_path / "bundles" / "tiny", "other": tmp_path / "bundles" / "other"}
    shutil.copytree(tiny_bundle, folders["tiny"])
    shutil.copytree(other_bundle, folders["other"])
    expected = {name: Graph(bundle.load(folder)).encode(TEXTS) for name, folder in folders.items()}
    assert np.abs(expected["tiny"] - expected["other"]).max() > 0.1
    server = launch(*(f"--bundle={folder}" for folder in folders.values()), "--threads", "1", engine="onnxruntime")
    stop, seen = threading.Event(), Counter[tuple[str, int]]()

    def ask(name: str) -> None:
        with httpx.Client(base_url=server.address, timeout=PATIENCE, trust_env=False) as client:
            while not stop.is_set():
                answer = client.post("/embed", json={"inputs": TEXTS, "model": name})
                seen[name, answer.status_code] += 1
                if answer.status_code == 200:
                    assert np.allclose(answer.json(), expected[name], atol=1e-4), name

    def asked_again() -> None:
        before, deadline = seen["tiny", 200], time.monotonic() + PATIENCE
        while seen["tiny", 200] < before + 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, name) for name in ("tiny", "other") * 2]
        try:
            for _ in range(3):
                asked_again()
                server.client.post("/admin/reload", params={"model": "tiny"}).raise_for_status()
            asked_again()
            assert seen["other", 404] == 0
            for _ in range(2):
                server.client.delete("/admin/models/other").raise_for_status()
                asked_again()
                server.client.post("/admin/models", json={"bundle": str(folders["other"])}).raise_for_status()
                asked_again()
        finally:
            stop.set()
        for one in asking:
            one.result()
    assert set(seen) == {("tiny", 200), ("other", 200), ("other", 404)}, "404 while it was not there, and nothing else"


@pytest.mark.slow
def test_two_bundles_of_one_name(tmp_path: Path) -> None:
    line = refused(
        *("--engine", "fake", "--data", str(tmp_path), "--port", "0"), env={**os.environ, "ISOSPHERE_BUNDLE": "a:b"}
    )
    assert line.startswith("isosphere: a and b have the same name 'fake': ")
