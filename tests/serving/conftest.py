"""Servers for tests: in this process with the fake engine, or as separate processes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from models.bundle.tokenizer import Tokens
from serving.app import create_app
from serving.commands import corpus as corpus_command
from serving.commands.options import corpus_parser
from serving.commands.starting import local_corpora, opened_corpora
from serving.corpora.stores import STORES
from serving.inference.engine import Embedded, Model
from serving.inference.engines import ENGINES
from serving.inference.fake_engine import FakeEngine
from serving.service import Service
from serving.settings import Settings
from tests.conftest import PATIENCE
from tests.serving.backends import BACKENDS, milvus_of
from tests.serving.shelf import Shelf
from tests.serving.sockets import OnSockets, Work, listening

ROOT = Path(__file__).resolve().parents[2]
MakeService = Callable[..., Service]
Served = tuple[Service, TestClient]
LOCAL = ("127.0.0.1", 5000)


@pytest.fixture
def make_service(tmp_path: Path) -> MakeService:
    """Return a function that makes a service with the fake engine or `model`, and its data in the test's folder."""

    return partial(service_in, tmp_path)


def service_in(data: Path, model: Model | None = None, store: str = "sqlite", **options: Any) -> Service:
    settings = Settings(data=data, no_demo=True, engine="fake", **options)
    opened = model or ENGINES["fake"](data)
    return Service(settings, opened, local_corpora(settings, STORES[store](data / "corpora")))


@pytest.fixture(scope="session")
def wait_until_ready() -> Callable[[TestClient], None]:
    return _wait_until_ready


def _wait_until_ready(client: TestClient) -> None:
    deadline = time.monotonic() + PATIENCE
    while (answer := client.get("/readyz")).status_code != 200:
        assert "failed" not in answer.text, answer.text
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.01)


@pytest.fixture(scope="session")
def _on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from _served(Settings(data=tmp_path_factory.mktemp("shared"), no_demo=True))


@pytest.fixture(scope="session")
def _on_milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("milvus")
    yield from _served(Settings(data=folder, no_demo=True, store=milvus_of(folder)))


def _served(settings: Settings) -> Iterator[Served]:
    service = Service(settings, ENGINES["fake"](settings.data), opened_corpora(settings))
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        _wait_until_ready(client)
        yield service, client


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    """Yield one server for many tests, which has no corpora and snapshots at the start of each test.

    Tests with the mark `backends` run on each backend, or on those that the mark names.
    """
    service, shared = request.getfixturevalue(f"_on_{getattr(request, 'param', 'sqlite')}")
    yield shared
    # The service is asked what there is, because most tests leave nothing, and each request costs milliseconds.
    for alias in service.aliases.listing():
        shared.delete(f"/aliases/{alias}")
    for name in service.library.corpora.names():
        for snapshot in service.snapshots.listing(name):
            shared.delete(f"/corpora/{name}/snapshots/{snapshot.id}")
        shared.delete(f"/corpora/{name}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("backends")
    if mark and "client" in metafunc.fixturenames:
        metafunc.parametrize("client", [BACKENDS[name] for name in mark.args or BACKENDS], indirect=True)


@pytest.fixture
def refuses(client: TestClient) -> Callable[..., None]:
    """Return a function that sends a request and checks the error's status, kind and message."""

    def check(refusal: tuple[int, str, str], method: str, path: str, **sent: Any) -> None:
        status, kind, says = refusal
        answer = client.request(method, path, **sent)
        body = answer.json()
        assert (answer.status_code, set(body)) == (status, {"error", "error_type"}), answer.text
        assert body["error_type"] == kind
        assert says in body["error"], body["error"]
        assert answer.headers["x-request-id"]

    return check


@pytest.fixture
def run() -> Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]:
    """Return a function that runs a coroutine while a service is running."""

    def run(service: Service, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(PATIENCE), service.running():
                await work()

        asyncio.run(main())

    return run


Command = Callable[..., int]
"""Type of a function that runs a command on a data folder without a server."""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    def command(verb: str, *arguments: str) -> int:
        given = [*arguments, "--data", str(tmp_path / "var"), "--engine", "fake"]
        try:
            return corpus_command.run(verb, *corpus_parser(verb).parse_known_args(given))
        except SystemExit as end:  # This is an option of the command itself.
            return int(end.code or 0)

    return command


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Undo changes of logging by a command that runs in this process."""
    named = [logging.getLogger(name) for name in ("", "serving", "models", "uvicorn")]
    levels, handlers = [one.level for one in named], logging.root.handlers[:]
    yield
    logging.root.handlers[:] = handlers  # The command's handler writes to a stream that is closed with the test.
    for one, level in zip(named, levels, strict=True):
        if one.level != level:  # Each change of a level clears the caches of all loggers.
            one.setLevel(level)


@dataclass
class Running:
    """A server process."""

    process: subprocess.Popen[str]
    client: httpx.Client
    log: Path
    """File for stderr. A pipe that nobody reads would block the server."""

    @property
    def address(self) -> str:
        return str(self.client.base_url).rstrip("/")

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            try:
                if self.client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the process, unless a test has already killed it."""
        self.process.kill()
        if self.process.stdout and not self.process.stdout.closed:
            self.process.communicate()
        self.client.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def free_port() -> int:
    return _free_port()


@dataclass
class Launcher:
    """Starter of `isosphere serve`, by default with the fake engine."""

    data: Path
    started: list[Running] = field(default_factory=list)

    def __call__(
        self,
        *arguments: str,
        ready: bool = True,
        demo: bool = False,
        engine: str = "fake",
        command: Sequence[str] = (sys.executable, "-m", "serving"),
    ) -> Running:
        port = _free_port()
        options = ["--engine", engine, "--data", str(self.data), *([] if demo else ["--no-demo"])]
        log = self.data / f"log-{len(self.started)}"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [*command, *options, "--port", str(port), *arguments],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False)
        running = Running(process, client, log)
        self.started.append(running)
        if ready:
            running.wait_until_ready()
        return running


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    for running in launcher.started:
        running.kill()


@pytest.fixture
def on_sockets(make_service: MakeService, monkeypatch: pytest.MonkeyPatch) -> OnSockets:
    """Return a function that runs a coroutine with a server whose timeouts are short."""
    monkeypatch.setattr("serving.commands.server.HEAD_SECONDS", 0.2)
    monkeypatch.setattr("serving.commands.server.SECONDS_TO_ASK", 0.0)

    def on_sockets(work: Work, **options: Any) -> None:
        async def main() -> None:
            async with listening(make_service(port=0, body_timeout=0.2, **options)) as (server, connect):
                await work(server, connect)

        asyncio.run(main())

    return on_sockets


class Gate(FakeEngine):
    """Fake engine that waits for `open` before it embeds."""

    def __init__(self, open: threading.Event) -> None:
        self.open = open

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        assert self.open.wait(PATIENCE)
        return super().embed(batch)


class Turned(Gate):
    """Fake engine that negates its vectors."""

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        vectors, norms = super().embed(batch)
        return Embedded(-vectors, norms)


@dataclass
class Bundles:
    """Bundles that `open_bundle` finds: `fake-2`, whose vectors are negated, or those that a test adds."""

    fake: Model
    found: Callable[[], Model]
    open: threading.Event = field(default_factory=threading.Event)
    may_load: threading.Event = field(default_factory=threading.Event)

    def turned(self, **manifest: Any) -> Model:
        golden = [replace(one, vector=[-x for x in one.vector]) for one in self.fake.manifest.golden]
        facts = {"name": "turned", "fingerprint": "fake-2", "golden": golden} | manifest

        def load(_: object) -> FakeEngine:
            assert self.may_load.wait(PATIENCE)
            return Turned(self.open)

        return Model(replace(self.fake.manifest, **facts), load, report=b'{"format": 1}')


@pytest.fixture
def bundles(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bundles]:
    fake = ENGINES["fake"](Path())
    bundles = Bundles(fake, lambda: fake)
    bundles.found = bundles.turned
    bundles.open.set()
    bundles.may_load.set()
    monkeypatch.setitem(ENGINES, "fake", lambda _: bundles.found())
    yield bundles
    bundles.open.set()
    bundles.may_load.set()


@pytest.fixture
def local(
    make_service: MakeService, bundles: Bundles, wait_until_ready: Callable[[TestClient], None]
) -> Iterator[TestClient]:
    """Yield a server of `fake-1` whose client is on the same machine."""
    with TestClient(create_app(make_service(bundles.fake)), client=LOCAL) as client:
        wait_until_ready(client)
        yield client


@pytest.fixture
def shelf(tmp_path: Path, bundles: Bundles, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf(tmp_path / "bundles", bundles)
    shelf.folder.mkdir()
    monkeypatch.setitem(ENGINES, "fake", shelf.open)
    return shelf


@pytest.fixture
def pair(shelf: Shelf, wait_until_ready: Callable[[TestClient], None]) -> Iterator[TestClient]:
    """Yield a server of `fake` and `turned` whose client is on the same machine."""
    with TestClient(create_app(shelf.service("fake", "turned")), client=LOCAL) as client:
        wait_until_ready(client)
        yield client
