"""Our server on a folder that outlives it: as a process that can be killed, or within this process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.commands.loading import opened_models
from serving.commands.starting import opened_service
from serving.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 120.0
"""Seconds in which a server must become ready."""


FINAL = ("succeeded", "failed", "cancelled")
"""States of a job that has ended."""
NAP = 0.02


class NotReadyError(RuntimeError):
    """The server ended or reported that it failed. The message is the end of its log."""


class BrokenError(RuntimeError):
    """The server answered with an unexpected error. The message has the answer and the end of its log."""


class FailedError(RuntimeError):
    """A server in this process reported that it failed. The message is its own."""


class JobFailedError(RuntimeError):
    """A job did not succeed. The message describes the job."""


@dataclass
class Server:
    """A server process."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path
    seconds: float = 0.0
    """Seconds from its start until it was ready."""

    def client(self, timeout: float = 60.0) -> httpx.Client:
        """Return a client for one thread."""
        return httpx.Client(base_url=self.address, timeout=timeout, trust_env=False)

    def wait_until_ready(self, patience: float = PATIENCE) -> None:
        """Wait for the first 200 of /readyz.

        Raises:
            NotReadyError: it fails, or takes longer than `patience` seconds.
        """
        began = time.perf_counter()
        with self.client() as client:
            while True:
                if self.process.poll() is not None or time.perf_counter() - began > patience:
                    raise NotReadyError(f"exit status {self.process.poll()}: {self.said()}")
                try:
                    answer = client.get("/readyz")
                except httpx.TransportError:
                    answer = None
                if answer is not None and answer.status_code == 200:
                    break
                if answer is not None and "failed" in answer.text:
                    raise NotReadyError(answer.text)
                time.sleep(0.01)
        self.seconds = time.perf_counter() - began

    def said(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def complaints(self) -> list[str]:
        """Return its logged errors: message and traceback of each line."""
        lines = self.log.read_text(errors="replace").splitlines()
        records = (json.loads(line) for line in lines if line.startswith('{"time"') and line.endswith("}"))
        return [f"{one['message']} {one.get('traceback', '')[-600:]}" for one in records if one["level"] == "error"]

    def kill(self) -> int:
        """Send `kill -9` if it still runs, and return the exit status."""
        self.process.kill()
        return self.process.wait()

    def stop(self) -> int:
        """Stop it as an operator does, with SIGTERM, and return the exit status."""
        self.process.terminate()
        return self.process.wait(60)


@dataclass
class Home:
    """A folder with the server's data, and the command to serve it."""

    folder: Path
    options: Sequence[str] = ("--engine", "fake")
    module: str = "serving"
    """Module to run."""
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    """Prefix of the command."""
    started: int = 0

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @contextmanager
    def server(self, environment: Mapping[str, str] | None = None, *, wait: bool = True) -> Iterator[Server]:
        """Start one process on the folder, ready unless `wait` is false. It is killed at the end if it still runs."""
        self.started += 1
        port, log = _free_port(), self.folder / "server.log"
        own = (sys.executable, "-m", self.module, "--data", str(self.data), "--no-demo", "--port", str(port))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self.prefix, *own, *self.options],
                cwd=ROOT,
                stdout=output,
                stderr=output,
                env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment, **(environment or {})},
            )
        server = Server(process, f"http://127.0.0.1:{port}", log)
        try:
            if wait:
                server.wait_until_ready()
            yield server
        except httpx.HTTPStatusError as error:
            raise BrokenError(f"{error.request.url}: {error.response.text[:300]}; it said {server.said()}") from error
        finally:
            server.kill()


def home(folder: Path, **how: object) -> Home:
    """Create a new home in `folder`."""
    made = Home(folder, **how)  # type: ignore[arg-type]
    made.data.mkdir(parents=True)
    return made


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(data: Path) -> Iterator[httpx.Client]:
    """Start a server that is ready.

    Raises:
        StoreError, FailedError: it can't be started.
    """
    settings = Settings(data=data, no_demo=True, engine="fake")
    app = create_app(opened_service(settings, opened_models(settings)))
    with TestClient(app, raise_server_exceptions=False) as client:
        while (answer := client.get("/readyz")).status_code != 200:
            if "failed" in answer.text:
                raise FailedError(answer.text)
            time.sleep(0.001)
        yield client  # type: ignore[misc]


def started(answer: httpx.Response) -> str:
    """Return the id of the accepted job."""
    if answer.status_code != 202:
        raise JobFailedError(f"{answer.request.url}: {answer.status_code} {answer.text[:300]}")
    return str(answer.json()["id"])


def ended(client: httpx.Client, job: str) -> dict[str, Any]:
    """Wait for the end of a job and return it.

    Raises:
        JobFailedError: it did not succeed.
    """
    while (found := _job(client, job))["state"] not in FINAL:
        time.sleep(NAP)
    if found["state"] != "succeeded":
        raise JobFailedError(str(found))
    return found


def all_ended(client: httpx.Client) -> None:
    """Wait for the end of all jobs, successful or not."""
    while any(job["state"] not in FINAL for job in client.get("/jobs").raise_for_status().json()["jobs"]):
        time.sleep(NAP)


def _job(client: httpx.Client, job: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/jobs/{job}").raise_for_status().json()
    return found
