"""Tests of the command as users run it: output, refusals, imports and end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from serving.__main__ import main, run
from serving.inference.fake_engine import FakeEngine
from serving.operations.failpoints import VARIABLE
from tests.conftest import PATIENCE
from tests.serving.conftest import Launcher, Running
from tests.serving.processes import python, refused


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--port", "seventy"), "--port: "),
        (("--port", "70000"), "--port: "),
        (("--exact-below", "9"), "--exact-below: "),
        (("--engine", "steam"), "--engine: must be one of auto, onnxruntime, openvino, tensorrt, fake"),
        (("--max-queued-tokens", "5"), "--max-queued-tokens must not be below"),
    ],
)
def test_bad_options(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("isosphere: ") and says in line


def test_bad_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ISOSPHERE_DEVICE", "abacus")
    assert run(()) == 2
    assert "--device: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "blocked"), [(("--port", "seventy"), True), (("keys", "list", "--api-keys-file", "none"), False)]
)
def test_only_the_server_blocks_hang_ups(
    arguments: tuple[str, ...], blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other commands end with their terminal, as usual."""
    monkeypatch.setattr(os, "umask", lambda _: 0)
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        assert main(arguments) == 2
        assert (signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ())) == blocked
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.slow
def test_a_refusal_is_the_end_of_the_process() -> None:
    assert "--nonsense" in refused("--nonsense", "1")


@pytest.mark.slow
def test_what_a_server_writes_is_for_nobody_else(launch: Launcher, tmp_path: Path) -> None:
    """Check the permissions of files, which only the owner may read, whatever the umask."""
    before = {*tmp_path.rglob("*")}
    open_to_all = ("/bin/sh", "-c", 'umask 0; exec "$0" -m serving "$@"', sys.executable)
    running = launch(command=open_to_all)
    running.client.put("/corpora/c")
    running.client.post("/corpora/c/documents", json={"documents": [{"text": "a"}]}).raise_for_status()
    job = running.client.post("/corpora/c/snapshots").headers["location"]
    with running.client.stream("GET", f"{job}/events") as events:
        assert "succeeded" in events.read().decode()
    written = {*tmp_path.rglob("*")} - before - {running.log}
    names = {path.relative_to(tmp_path).parts[0] for path in written}
    assert names >= {"corpora", "jobs", "snapshots"}
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o7777 for path in written}
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


@pytest.mark.slow
def test_others_are_let_in_with_keys_or_on_purpose(launch: Launcher, tmp_path: Path) -> None:
    options = ("--engine", "fake", "--data", str(tmp_path), "--port", "0", "--host", "0.0.0.0")
    assert "other machines can reach 0.0.0.0: require keys (--api-keys-file)" in refused(*options)
    absent = str(tmp_path / "absent.json")
    assert refused(*options, "--api-keys-file", absent) == f"isosphere: {absent}: No such file or directory"
    (tmp_path / "keys.json").write_text('{"format": 1, "keys": []}')
    assert (
        launch("--host", "0.0.0.0", "--api-keys-file", str(tmp_path / "keys.json")).client.get("/info").status_code
        == 401
    )
    launch("--host", "0.0.0.0", "--insecure", "--data", str(tmp_path / "open")).client.get("/info").raise_for_status()


@pytest.mark.slow
def test_no_bundle(tmp_path: Path) -> None:
    assert str(tmp_path / "manifest.json") in refused("--bundle", str(tmp_path), "--data", str(tmp_path))


@pytest.mark.slow
def test_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused("--engine", "fake", "--data", str(tmp_path), "--port", str(port))
    assert f"127.0.0.1:{port}" in line and "in use" in line


@pytest.mark.slow
def test_a_taken_data_folder(launch: Launcher, tmp_path: Path) -> None:
    launch()
    assert "in use by another server" in refused("--engine", "fake", "--data", str(tmp_path), "--port", "0")


@pytest.mark.slow
def test_data_that_cannot_be_served(launch: Launcher, tmp_path: Path) -> None:
    (tmp_path / "corpora").mkdir()
    file = tmp_path / "corpora" / "notes.sqlite"
    file.write_text("mine")
    server = launch()
    answer = httpx.get(f"{server.address}/corpora/notes")
    assert (answer.status_code, "notes.sqlite: not a corpus" in answer.json()["error"]) == (503, True)
    listed = {one["name"]: one["state"] for one in httpx.get(f"{server.address}/corpora").json()["corpora"]}
    assert listed["notes"] == "damaged"
    assert httpx.put(f"{server.address}/corpora/other").status_code == 201
    assert file.read_text() == "mine"
    assert f"{file}/corpora can't be used" in refused("--engine", "fake", "--data", str(file), "--port", "0")


@pytest.mark.slow
def test_it_announces_itself_and_drains_under_load(launch: Launcher) -> None:
    """Send SIGTERM with requests in progress. Each earlier request is answered with vectors or 503."""
    server, told = launch(), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(embed, server.address, i, told) for i in range(100)]
        concurrent.futures.wait(answers, return_when=concurrent.futures.FIRST_COMPLETED)
        told.set()
        server.process.send_signal(signal.SIGTERM)
        statuses = {answer.result() for answer in answers}
    assert 200 in statuses and statuses <= {200, 503, None}
    output, _ = server.process.communicate(timeout=PATIENCE)
    logged = server.log.read_text()
    assert server.process.returncode == 0, logged
    assert 0 < logged.find("stopping: ") < logged.find("stopped")
    assert f"ready on {server.address}" in output
    assert output.count("curl -s") == 2, "no corpus, no line that searches one"


def embed(address: str, i: int, told: threading.Event) -> int | None:
    """Return the status, or None for a refused connection, which only requests after `told` may see.

    An interrupted answer raises an error.
    """
    may_be_late = told.is_set()
    try:
        answer = httpx.post(
            f"{address}/embed", json={"inputs": [f"text {i}"] * 200}, timeout=PATIENCE, trust_env=False, verify=False
        )
    except httpx.ConnectError:
        assert may_be_late
        return None
    if answer.status_code == 200:
        assert len(answer.json()) == 200
    return answer.status_code


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, True])
def test_printed_commands_work(launch: Launcher, tmp_path: Path, *, keyed: bool) -> None:
    server = launch()
    server.client.put("/corpora/c").raise_for_status()
    server.client.post("/corpora/c/documents", json={"documents": [{"text": "run a coroutine"}]}).raise_for_status()
    server.process.terminate()
    server.process.communicate(timeout=PATIENCE)
    keys = tmp_path / "keys.json"
    secret = python("-m", "serving", "keys", "add", "k", "--api-keys-file", keys).stdout.strip()
    server = launch(*(["--api-keys-file", str(keys)] if keyed else []))
    assert server.process.stdout
    lines = [server.process.stdout.readline() for _ in range(5 + keyed)]
    assert keyed == ("export KEY=" in lines[0])
    commands = [line for line in lines if line.startswith("curl")]
    assert len(commands) == 3, lines
    for command in commands:
        shell = f"{command.rstrip()} --fail"
        environment = {**os.environ, "KEY": secret} if keyed else None
        ran = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False, env=environment)
        assert ran.returncode == 0, (command, ran)
    assert '"run a coroutine"' in ran.stdout


@pytest.mark.slow
def test_a_thousand_connections_at_once(launch: Launcher) -> None:
    server = launch()
    texts = [f"text {i} " + "word " * (i % 40) for i in range(1000)]

    url = server.client.base_url

    async def answered(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], text: str) -> bytes:
        reader, writer = connection
        body = json.dumps({"inputs": text}).encode()
        head = f"POST /embed HTTP/1.1\r\nhost: {url.host}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        reply = await reader.read()
        writer.close()
        return reply

    async def main() -> list[bytes]:
        """Use plain sockets, because httpx searches all of its connections for each new one."""
        async with asyncio.timeout(PATIENCE):
            opened = await asyncio.gather(*(asyncio.open_connection(url.host, url.port) for _ in texts))
            return await asyncio.gather(*map(answered, opened, texts))

    heads, bodies = zip(*(reply.split(b"\r\n\r\n", 1) for reply in asyncio.run(main())), strict=True)
    assert {head.split()[1] for head in heads} == {b"200"}
    engine = FakeEngine()
    expected = engine.embed(engine.tokenize(texts, "right")).vectors
    assert np.allclose([json.loads(body)[0] for body in bodies], expected, atol=1e-6)


@pytest.mark.slow
def test_openai_client(launch: Launcher) -> None:
    import openai  # It takes half a second to import.

    server = launch()
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
    default = client.embeddings.create(model="any", input=["a", "b"])
    floats = client.embeddings.create(model="any", input=["a", "b"], encoding_format="float")
    for one, two in zip(default.data, floats.data, strict=True):
        assert np.allclose(one.embedding, two.embedding, atol=1e-7)
    assert client.embeddings.create(model="any", input="a", dimensions=8).data[0].embedding.__len__() == 8
    assert [model.id for model in client.models.list()] == ["fake"]
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length"):
        client.embeddings.create(model="any", input=[[100_000]])
    with pytest.raises(openai.UnprocessableEntityError, match="dimensions"):
        client.embeddings.create(model="any", input="a", dimensions=9999)
    client.close()


SLOW = """
import atexit, sys, time
from dataclasses import replace
from models.cli.ending import leave
from serving.__main__ import main
from serving.inference.engines import ENGINES
fake = ENGINES["fake"]
def load(options):
    print("it loads", file=sys.stderr, flush=True)
    time.sleep(120)
ENGINES["fake"] = lambda folder: replace(fake(folder), load=load)
atexit.register(print, "Python ends", file=sys.stderr)
leave(main(sys.argv[1:]))
"""


def answers(server: Running) -> bool:
    with suppress(httpx.TransportError):
        return server.client.get("/readyz").status_code == 503
    return False


@pytest.mark.slow
def test_a_load_that_runs_does_not_hold_the_end(launch: Launcher) -> None:
    """Stop a server that is loading a bundle, which can't be interrupted and must not be waited for."""
    server = launch(command=(sys.executable, "-c", SLOW), ready=False)
    while "it loads" not in server.log.read_text() or not answers(server):
        assert server.process.poll() is None, server.log.read_text()
        time.sleep(0.02)
    server.process.terminate()
    server.process.communicate(timeout=PATIENCE)
    assert server.process.returncode == 0, server.log.read_text()
    assert "Python ends" not in server.log.read_text(), "under a thread in native code"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["store.before-copy", "snapshots.before-pack", "snapshots.before-restore"])
def test_what_copies_a_corpus_is_left_to_the_next_server(
    launch: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Stop a server that copies a large corpus, which takes minutes. The next server continues the copy."""
    held = tmp_path / "held"
    monkeypatch.setenv(VARIABLE, f"{place}=hold:{held}")
    server = launch()
    server.client.put("/corpora/c").raise_for_status()
    rows = [{"id": f"{i}", "text": f"document {i}"} for i in range(5)]
    server.client.post("/corpora/c/documents", json={"documents": rows}).raise_for_status()
    if place == "snapshots.before-restore":
        made = ended(server, server.client.post("/corpora/c/snapshots").json()["id"])["result"]["id"]
        held.touch()
        job = server.client.put("/corpora/d/restore", json={"snapshot": made, "of": "c"}).json()["id"]
    else:
        held.touch()
        job = server.client.post("/corpora/c/snapshots").json()["id"]
    while server.client.get(f"/jobs/{job}").json()["state"] != "running":
        time.sleep(0.01)
    server.process.terminate()
    with suppress(httpx.TransportError):
        while server.client.get("/readyz").status_code == 200:
            time.sleep(0.01)
    held.unlink()
    server.process.communicate(timeout=PATIENCE)
    assert server.process.returncode == 0, server.log.read_text()
    monkeypatch.delenv(VARIABLE)
    server = launch()
    assert ended(server, job)["state"] == "succeeded"
    assert len(server.client.get("/corpora/c/snapshots").json()["snapshots"]) == 1
    assert server.client.get("/corpora/c").json()["documents"] == 5
    assert [path.name for path in (tmp_path / "snapshots").glob("*/.*")] == []


def ended(server: Running, job: str) -> dict[str, Any]:
    while (found := server.client.get(f"/jobs/{job}").json())["state"] in ("queued", "running"):
        time.sleep(0.01)
    return dict(found)
