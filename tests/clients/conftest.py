"""A real server for the tests of all clients, and a guard that no other host is contacted."""

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

os.environ |= {  # The variables are set before the clients are imported, because the clients read them then.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "0",  # With this variable, huggingface_hub would send no requests, not even to our server.
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # Without this variable, the client would look for its latest version.
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
    """A server process, and keys that it accepts."""

    address: str
    model: str
    """Name of the served model."""
    key: str
    slow_key: str
    """Key that allows one request in two seconds."""
    spent_key: str
    """Key that has used up its requests for hours."""

    def post(self, path: str, body: dict[str, Any], key: str = "") -> Any:
        headers = {"authorization": f"Bearer {key or self.key}"}
        answer = httpx.post(f"{self.address}{path}", json=body, headers=headers, timeout=60, trust_env=False)
        return answer.raise_for_status().json()

    def embed(self, texts: Sequence[str], key: str = "") -> NDArray[np.float64]:
        """Return the unit vectors (N, D) of texts."""
        return np.array(self.post("/embed", {"inputs": list(texts)}, key))

    def cosines(self) -> NDArray[np.float64]:
        """Return the cosines of the query with the texts."""
        cosines: NDArray[np.float64] = self.embed(TEXTS) @ self.embed([QUERY])[0]
        return cosines

    def ranking(self) -> list[str]:
        """Return the texts by their cosine with the query, best first."""
        return [TEXTS[i] for i in np.argsort(-self.cosines())]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(BUNDLE, tmp_path_factory.mktemp("server")) as server:
        yield server


@contextmanager
def serving(bundle: Path, folder: Path) -> Iterator[Server]:
    """Start a server of the bundle, with its keys, data and log in `folder`."""
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
def same(server: Server) -> Callable[..., bool]:
    """Return a function that tells whether a client's vectors equal the server's own vectors of `texts`."""

    def check(vectors: ArrayLike, texts: Sequence[str] = TEXTS) -> bool:
        ours, theirs = server.embed(texts), np.asarray(vectors, dtype=np.float64)
        if theirs.shape != ours.shape:
            return False
        cosines = np.sum(ours * theirs, axis=1) / np.linalg.norm(theirs, axis=1)
        return bool(cosines.min() >= 0.9999)

    return check


@pytest.fixture(autouse=True)
def others_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the list of other hosts that a client tried to contact. Attempts fail, and the test must empty the list."""
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
    """Return the Python snippets of the page for users, by the heading above them."""
    found = re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    code = {name: "\n".join(re.findall(r"```python\n(.*?)```", body, re.DOTALL)) for name, body in found}
    return {name: python for name, python in code.items() if python}


@pytest.fixture
def snippet(server: Server) -> Callable[[str], dict[str, Any]]:
    """Return a function that runs the snippet under a heading against the server, and returns its names."""
    return lambda heading: run_snippet(heading, server)


def run_snippet(heading: str, server: Server) -> dict[str, Any]:
    """Run the snippet under a heading against a server, and return the names that it defines."""
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
