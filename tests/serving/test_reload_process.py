"""Tests of a server process that reloads: by SIGHUP, by POST, under load, with an invalid bundle; and of a hang-up."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from models.bundle import bundle
from models.bundle.bundle import ONNX
from models.runtimes.graph import Graph
from tests.conftest import PATIENCE, WORDS
from tests.serving.conftest import Launcher, Running
from tests.serving.processes import python

TEXTS = [" ".join(WORDS[i : i + 1 + i % 30]) for i in range(40)]
WORKERS = 8


@dataclass
class Artifacts:
    """Two bundles, and the link to the served one."""

    folder: Path

    @property
    def default(self) -> Path:
        return self.folder / "default"

    def point(self, name: str) -> str:
        """Point the link to a bundle, and return the bundle's fingerprint."""
        link = self.folder / "link"
        link.symlink_to(name)
        link.replace(self.default)
        return str(json.loads((self.default / "manifest.json").read_text())["fingerprint"])


@pytest.fixture
def artifacts(tmp_path: Path, tiny_bundle: Path, other_bundle: Path) -> Artifacts:
    made = Artifacts(tmp_path / "artifacts")
    shutil.copytree(tiny_bundle, made.folder / "tiny")
    shutil.copytree(other_bundle, made.folder / "other")
    return made


def wait_for(server: Running, fingerprint: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while server.client.get("/info").json()["fingerprint"] != fingerprint:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_no_request_fails_and_none_mixes_two_encoders(launch: Launcher, artifacts: Artifacts) -> None:
    vectors = {}
    for name in ("other", "tiny"):
        fingerprint = artifacts.point(name)
        vectors[fingerprint] = Graph(bundle.load(artifacts.default)).encode(TEXTS)
    first, second = vectors[artifacts.point("tiny")], vectors[artifacts.point("other")]
    assert np.abs(first - second).max() > 0.1
    artifacts.point("tiny")
    server = launch("--bundle", str(artifacts.default), "--threads", "1", engine="onnxruntime")
    stop, answers = threading.Event(), list[httpx.Response]()

    def ask() -> None:
        with httpx.Client(base_url=server.address, timeout=PATIENCE, trust_env=False) as client:
            while not stop.is_set():
                answers.append(client.post("/embed", json={"inputs": TEXTS}))

    with ThreadPoolExecutor(WORKERS) as pool:
        asking = [pool.submit(ask) for _ in range(WORKERS)]
        try:
            for name in ("other", "tiny", "other"):
                time.sleep(0.3)
                fingerprint = artifacts.point(name)
                server.process.send_signal(signal.SIGHUP)
                wait_for(server, fingerprint)
            time.sleep(0.3)
        finally:
            stop.set()
        for one in asking:
            one.result()
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-model-fingerprint"] for answer in answers} == set(vectors)
    for answer in answers:
        expected = vectors[answer.headers["x-model-fingerprint"]]
        assert np.allclose(answer.json(), expected, atol=1e-4), "wholly of the encoder that it names"


@pytest.mark.slow
def test_a_bad_bundle_leaves_the_old_one_serving(launch: Launcher, artifacts: Artifacts) -> None:
    fingerprint = artifacts.point("tiny")
    server = launch("--bundle", str(artifacts.default), "--threads", "1", engine="onnxruntime")
    with (artifacts.folder / "other" / ONNX).open("ab") as graph:
        graph.write(b"x")
    artifacts.point("other")
    answer = server.client.post("/admin/reload")
    assert answer.status_code == 422 and "model.onnx: changed" in answer.json()["error"]
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + PATIENCE
    while 'isosphere_reloads_total{outcome="failed"} 2.0' not in server.client.get("/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert server.client.get("/readyz").status_code == 200
    assert server.client.get("/info").json()["fingerprint"] == fingerprint
    assert server.client.post("/embed", json={"inputs": "a"}).headers["x-model-fingerprint"] == fingerprint
    artifacts.point("tiny")
    answer = server.client.post("/admin/reload")
    assert (answer.status_code, answer.json()) == (200, {"old": fingerprint, "new": fingerprint})


@pytest.mark.slow
def test_told_while_it_starts(launch: Launcher) -> None:
    server = launch(ready=False)
    status, blocked = Path(f"/proc/{server.process.pid}/status"), 0
    while not blocked & 1 << (signal.SIGHUP - 1):  # The signal is sent after Python's own start.
        assert server.process.poll() is None
        blocked = int(status.read_text().split("SigBlk:")[1].split()[0], 16)
    server.process.send_signal(signal.SIGHUP)
    server.wait_until_ready()
    deadline = time.monotonic() + PATIENCE
    while 'isosphere_reloads_total{outcome="done"} 1.0' not in server.client.get("/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.02)


HUNG_UP = """
import os, pty, signal, sys, time, urllib.request
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests themselves were started by nohup
pid, terminal = pty.fork()
if pid == 0:
    options = ["--engine", "fake", "--data", sys.argv[1], "--port", sys.argv[2], "--no-demo"]
    os.execv(sys.executable, [sys.executable, "-m", "serving", *options])

def get(path):
    with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[2]}{path}") as answer:
        return answer.read().decode()

def until(condition):
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit("in vain")

until(lambda: get("/readyz"))
os.kill(pid, signal.SIGHUP)
until(lambda: 'isosphere_reloads_total{outcome="done"} 1.0' in get("/metrics"))
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.slow
def test_when_its_terminal_goes_the_server_ends(tmp_path: Path, free_port: int) -> None:
    """Send SIGHUP by closing the terminal. The server must end, because nobody could stop it otherwise."""
    ran = python("-c", HUNG_UP, tmp_path, str(free_port))
    assert ran.returncode == 0, ran.stderr
