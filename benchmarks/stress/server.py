"""Our server in its own process, for stress trials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.serving.client import Address, ReplyError, closed_loop, post, status
from benchmarks.serving.loads import Request
from benchmarks.serving.processes import cpu_clock, cpu_seconds, free_port, is_runnable, memory_mb
from serving.operations.keys import FORMAT, digest

NO_KEYS: Mapping[str, str] = {}


@dataclass
class Server:
    """A server process under load."""

    process: subprocess.Popen[bytes]
    address: Address
    cpus: int
    """Number of CPUs that the process may use."""

    @property
    def memory_mb(self) -> int:
        return memory_mb(self.process.pid)

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    @property
    def cpu_clock(self) -> float:
        """Return the CPU time of the process without its children, with nanosecond resolution."""
        return cpu_clock(self.process.pid)

    @property
    def idle(self) -> bool:
        return not is_runnable(self.process.pid)

    @property
    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def post(self, path: str) -> int:
        """Send an empty POST, and return the status."""
        return status(post(replace(self.address, path=path), b""))


@contextmanager
def started(
    folder: Path, options: Sequence[str] = (), *, apart: bool = False, keys: Mapping[str, str] = NO_KEYS
) -> Iterator[Server]:
    """Start a server, wait until it is ready, and kill it at the end if it still runs.

    With `apart`, the server has half of the CPUs, and this thread has the other half. A flood of requests then takes no
    CPU time from the server. `keys` maps names of keys to secrets. A key may read and write corpora whose names begin
    with the name of the key.
    """
    with TemporaryDirectory() as data:
        port = free_port()
        command = [sys.executable, "-m", "serving", "--bundle", folder, "--data", data, "--port", str(port)]
        if keys:
            command += ["--api-keys-file", _key_file(Path(data, "keys.json"), keys)]
        all_cpus = sorted(os.sched_getaffinity(0))
        half = len(all_cpus) // 2 if apart else 0
        own, others = all_cpus[: len(all_cpus) - half], all_cpus[-half:]
        os.sched_setaffinity(0, own)  # A process inherits the CPUs of the thread that starts it.
        with Path(data, "log").open("wb") as log:
            process = subprocess.Popen(
                [*map(str, command), "--no-demo", "--log-format", "json", *options], stdout=log, stderr=log
            )
        os.sched_setaffinity(0, others)
        try:
            headers = [f"authorization: Bearer {secret}" for secret in keys.values()][:1]
            server = Server(process, Address(port, "/v1/embeddings", headers=tuple(headers)), len(own))
            deadline = time.monotonic() + 60
            while not _ready(server):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(Path(data, "log").read_text()[-2000:])
                time.sleep(0.05)
            yield server
        finally:
            os.sched_setaffinity(0, all_cpus)
            process.kill()
            process.wait()


def _key_file(file: Path, keys: Mapping[str, str]) -> Path:
    found = [
        {"name": name, "sha256": digest(secret), "scopes": ["read", "write"], "corpora": [f"{name}*"]}
        for name, secret in keys.items()
    ]
    file.write_text(json.dumps({"format": FORMAT, "keys": found}), encoding="utf-8")
    return file


def _ready(server: Server) -> bool:
    try:
        closed_loop(server.address, iter([Request(b'{"input": "a"}', 1, 3)]), 1, 0.0)
    except (ReplyError, OSError):
        return False
    return True
