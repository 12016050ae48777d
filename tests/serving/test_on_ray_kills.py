"""Test of replicas on Ray while a node is killed under load: answers are right, and other requests succeed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest

from isosphere.encoder import load
from tests.clusters import free_port, nodes
from tests.conftest import PATIENCE

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]
TEXTS = ["a cat can sleep", "the dog", "the man can play", "a book", "rain"]
CALLERS = 4
UNNOTICED_SECONDS = 1.0
"""Maximum seconds in which Ray still sends requests to a lost node."""


class Asked(NamedTuple):
    began: float
    ended: float
    right: bool
    failed: bool


def test_a_killed_node_fails_only_its_requests(tiny_bundle: Path) -> None:
    expected = load(tiny_bundle, engine="onnxruntime", precision="fp32", threads=1).encode(TEXTS)
    asked: list[Asked] = []
    stop = threading.Event()

    def call(address: str) -> None:
        with httpx.Client(base_url=address, timeout=PATIENCE) as client:
            while not stop.is_set():
                began = time.monotonic()
                try:
                    answer = client.post("/embed", json={"inputs": TEXTS})
                    failed = answer.status_code != 200
                    right = not failed and bool(np.abs(expected - answer.json()).max() < 1e-5)
                except httpx.TransportError:
                    failed, right = True, False
                asked.append(Asked(began, time.monotonic(), right, failed))

    with nodes(2) as cluster:
        import ray
        from ray import serve

        from serving.commands.on_ray import deployment

        ray.init(cluster.address, log_to_driver=False)
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port, "location": "HeadOnly"})
        options = {
            "bundle": str(tiny_bundle),
            "engine": "onnxruntime",
            "precision": "fp32",
            "threads": 1,
            "replicas": 2,
        }
        serve.run(deployment.application(options), name=deployment.NAME, route_prefix="/")
        callers = [threading.Thread(target=call, args=(f"http://127.0.0.1:{port}",)) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        _wait(lambda: len(asked) > 50)
        killed = time.monotonic()
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        gone = time.monotonic()
        _wait(lambda: sum(one.began > killed and one.right for one in asked) > 50)
        stop.set()
        for caller in callers:
            caller.join()
        ray.shutdown()
    assert all(one.right or one.failed for one in asked)
    failed = [one for one in asked if one.failed]
    late = [round(one.began - gone, 3) for one in failed if one.began > gone]
    assert len(failed) <= CALLERS and all(killed <= one.ended for one in failed), failed
    assert all(after < UNNOTICED_SECONDS for after in late), late


def _wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert reached()
