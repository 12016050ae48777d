"""One real server, open to whoever has a key, for every client; nobody else may be asked for anything."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

os.environ |= {  # read where the clients are imported
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "0",  # where it is set, huggingface_hub asks nobody at all, not even our server
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it would ask for the latest one
    "NO_PROXY": "127.0.0.1",
}

ROOT = Path(__file__).resolve().parents[2]
PYTHON = str(ROOT / ".venv" / "bin" / "python")
SERVING = (PYTHON, "-m", "serving")
BUNDLE = ROOT / os.environ.get("ISOSPHERE_BUNDLE", "artifacts/default")
PAGE = ROOT / "docs" / "clients.md"
TEXTS = [
    "A man plays the guitar on stage.",
    "Children play football in the park.",
    "Der Hund schläft; 犬は眠っている. 🐕",
    "Someone is making music for an audience.",
]
QUERY = "Who is playing an instrument?"


@dataclass(frozen=True)
class Server:
    """A server process, and keys that open it."""

    address: str
    model: str
    """Name of the served model."""
    key: str
    slow_key: str
    """It may ask once in two seconds."""
    spent_key: str
    """It has asked, and may again in hours."""

    def post(self, path: str, body: dict[str, Any], key: str = "") -> Any:
        headers = {"authorization": f"Bearer {key or self.key}"}
        answer = httpx.post(f"{self.address}{path}", json=body, headers=headers, timeout=60, trust_env=False)
        return answer.raise_for_status().json()

    def embed(self, texts: Sequence[str], key: str = "") -> NDArray[np.float64]:
        """Unit vectors, (N, D)."""
        return np.array(self.post("/embed", {"inputs": list(texts)}, key))

    def cosines(self) -> NDArray[np.float64]:
        """Those of the query with the texts."""
        cosines: NDArray[np.float64] = self.embed(TEXTS) @ self.embed([QUERY])[0]
        return cosines

    def ranking(self) -> list[str]:
        """The texts by their cosine with the query, best first."""
        return [TEXTS[i] for i in np.argsort(-self.cosines())]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(BUNDLE, tmp_path_factory.mktemp("server")) as server:
        yield server


@contextmanager
def serving(bundle: Path, folder: Path) -> Iterator[Server]:
    """A server of the bundle; its keys, its data and its log are in the folder."""
    key = _new_key(folder, "open")
    slow_key, spent_key = (_new_key(folder, rate, "--requests-per-second", rate) for rate in ("0.5", "0.0001"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--bundle", str(bundle), "--data", str(folder), "--api-keys-file", str(folder / "keys.json")]
    options += ["--engine", "onnxruntime", "--precision", "fp32", "--port", str(port), "--no-demo"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*SERVING, *options], cwd=ROOT, stdout=log, stderr=log)
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}", process, folder / "log")
        server = Server(f"http://127.0.0.1:{port}", bundle.name, key, slow_key, spent_key)
        server.embed(["a"], spent_key)
        yield server
    finally:
        process.terminate()
        process.wait(60)


def _new_key(folder: Path, *options: str) -> str:
    command = [*SERVING, "keys", "add", *options, "--api-keys-file", str(folder / "keys.json")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{address}/readyz", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"not ready in two minutes:\n{log.read_text()}")


@pytest.fixture
def same(server: Server) -> Callable[..., None]:
    """Checks a client's vectors: those of `texts` as the server gives them to anyone."""

    def check(vectors: ArrayLike, texts: Sequence[str] = TEXTS) -> None:
        ours, theirs = server.embed(texts), np.asarray(vectors, dtype=np.float64)
        assert theirs.shape == ours.shape
        cosines = np.sum(ours * theirs, axis=1) / np.linalg.norm(theirs, axis=1)
        assert cosines.min() >= 0.9999

    return check


@pytest.fixture(autouse=True)
def others_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Hosts beyond this machine that a client tried to ask, in vain; a test that leaves one in here fails."""
    asked: list[str] = []
    look_up, connect = socket.getaddrinfo, socket.socket.connect

    def guarded_look_up(host: Any, *arguments: Any, **options: Any) -> Any:
        _check(host)
        return look_up(host, *arguments, **options)

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            _check(address[0])
        connect(self, address)

    def _check(host: Any) -> None:
        if host not in ("127.0.0.1", "::1", "localhost"):
            asked.append(str(host))
            raise OSError(f"a test may not ask {host}")

    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    yield asked
    assert asked == []


def snippets() -> dict[str, str]:
    """The Python in the page for users, by the heading it stands under."""
    found = re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    code = {name: "\n".join(re.findall(r"```python\n(.*?)```", body, re.DOTALL)) for name, body in found}
    return {name: python for name, python in code.items() if python}


@pytest.fixture
def snippet(server: Server) -> Callable[[str], dict[str, Any]]:
    """Runs the page's Python under a heading against the server; what names it leaves."""
    return lambda heading: run_snippet(heading, server)


def run_snippet(heading: str, server: Server) -> dict[str, Any]:
    """The names that the page's Python under a heading leaves, run against a server."""
    names: dict[str, Any] = {"texts": TEXTS, "query": QUERY}
    code = snippets()[heading]
    for written, meant in (
        ("http://127.0.0.1:8080", server.address),
        ("your-key", server.key),
        ("artifacts/default", str(BUNDLE)),
        ('"default"', f'"{server.model}"'),
    ):
        code = code.replace(written, meant)
    exec(compile(code, f"{PAGE} ({heading})", "exec"), names)
    return names
