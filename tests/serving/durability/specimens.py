"""Data folders left by servers, with the files to damage and the states that may be found."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from serving.operations.failpoints import VARIABLE
from tests.serving.durability.damage import Case, Look
from tests.serving.durability.history import State, body
from tests.serving.durability.jobs import NAP, ended, started
from tests.serving.durability.server import Server, home
from tests.serving.durability.traffic import CORPUS, Traffic

END = 4096
"""Bytes at the end of a file that are damaged, one at a time."""
WRITES = 60
"""Number of writes. It is small enough for the log to contain them all."""
LEAST = 10
"""Passages from which a corpus has a built index."""
ROWS = 40
"""Rows of an unfinished upload."""
_OWN = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}|[0-9a-f]{32}")
"""Pattern of the unique part of file names."""


@dataclass(frozen=True)
class Specimen:
    """A data folder with the states that may be found in it."""

    folder: Path
    states: Sequence[State]
    """Allowed states, oldest first. The last is the folder's current state."""
    look: Look = "opened"
    """Check of the damaged folder."""
    subject: str = ""
    """Snapshot to restore, or job to continue."""
    part: str = "."
    """Folder whose files are damaged."""
    emptied: str = "."
    """Folder whose files are emptied: the same one, or a parent."""

    def files(self, part: str) -> list[str]:
        """Return the relevant files. SQLite recreates its shared memory, and locks are empty."""
        found = (path for path in (self.folder / part).rglob("*") if path.is_file() and path.stat().st_size)
        return sorted(str(path.relative_to(self.folder)) for path in found if not path.name.endswith("-shm"))

    def cases(self) -> Iterator[Case]:
        """Yield cases: each of the last `END` bytes of every file flipped and cut, and every file emptied."""
        yield from (Case(name, 0, "cut") for name in self.files(self.emptied))
        for name in self.files(self.part):
            size = (self.folder / name).stat().st_size
            for at in range(max(0, size - END), size):
                yield Case(name, at, "flip")
                if at:
                    yield Case(name, at, "cut")


def kind_of(file: str) -> str:
    """Return the file's name, with its folder in place of a unique part."""
    path = Path(file)
    return path.name if not _OWN.search(path.name) else f"{path.parent.name}/{_OWN.sub('*', path.name)}"


def killed(folder: Path) -> Specimen:
    """Make a folder whose writes are all in the log."""
    return _written(folder, killed=True)


def stopped(folder: Path) -> Specimen:
    """Make a folder whose log is merged into the file."""
    return _written(folder, killed=False)


def _written(folder: Path, *, killed: bool) -> Specimen:
    at = home(folder)
    with at.server() as server:
        states = _filled(server)
        if killed:
            server.kill()
        else:
            server.stop()
    return Specimen(at.data, states)


def _filled(server: Server) -> Sequence[State]:
    """Fill the corpus by one writer, and return the states."""
    traffic = Traffic.of(1)
    traffic.check(server)
    traffic.writers[0].settle({})
    traffic.write(server, WRITES)
    return traffic.writers[0].states


def indexed(folder: Path) -> Specimen:
    """Make a folder with a built index."""
    at = home(folder, options=("--engine", "fake", "--exact-below", str(LEAST)))
    with at.server() as server:
        states = _filled(server)
        with server.client() as client:
            while client.get(f"/corpora/{CORPUS}").json()["index_details"]["state"] == "building":
                time.sleep(NAP)
        server.stop()
    return Specimen(at.data, states, part="indexes", emptied="indexes")


def kept(folder: Path) -> Specimen:
    """Make a folder with a snapshot."""
    at = home(folder)
    with at.server() as server:
        states = _filled(server)
        with server.client() as client:
            made = ended(client, started(client.post(f"/corpora/{CORPUS}/snapshots")))["result"]["id"]
        server.stop()
    return Specimen(at.data, states, "restored", made, "snapshots", "snapshots")


def accepted(folder: Path) -> Specimen:
    """Make a folder with an accepted upload of which nothing is done."""
    return _uploading(folder, "jobs.before-checkpoint=kill@1")


def examined(folder: Path) -> Specimen:
    """Make a folder with an upload whose rows are all checked, and none stored."""
    return _uploading(folder, "jobs.after-checkpoint=kill@2")


def _uploading(folder: Path, failpoint: str) -> Specimen:
    at, names = home(folder), [f"row-{i}" for i in range(ROWS)]
    lines = b"\n".join(orjson.dumps(body(name, 1, "job")) for name in names)
    with at.server({VARIABLE: failpoint}) as server, server.client() as client:
        client.put(f"/corpora/{CORPUS}").raise_for_status()
        kind = {"content-type": "application/x-ndjson"}
        with suppress(httpx.TransportError):  # The server may be gone before it answers.
            client.post(f"/corpora/{CORPUS}/documents?async=true", content=lines, headers=kind)
        server.process.wait()
    (spool,) = (at.data / "jobs" / "spool").iterdir()
    return Specimen(at.data, [{}, dict.fromkeys(names, 1)], "continued", spool.name, "jobs/spool", "jobs")
