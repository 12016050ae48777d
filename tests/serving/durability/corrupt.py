"""Corruption: every byte at the end of every data file is flipped, or cut off with everything behind it.

A specimen is a data folder left by a server, with the states that may be found in it.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

from benchmarks.stress.trial import Bound
from models import cpus
from serving.operations.failpoints import VARIABLE
from tests.serving.durability.damage import Case, Look, Task
from tests.serving.durability.history import Outcome, State, body
from tests.serving.durability.server import NAP, ROOT, Server, ended, home, started
from tests.serving.durability.traffic import CORPUS, Traffic

END = 4096
"""Bytes at the end of a file that are damaged, one at a time."""
WRITES = 60
"""Number of writes. It is small enough for the log to contain them all."""
LEAST = 10
"""Passages from which a corpus has a built index."""
ROWS = 40
"""Rows of an unfinished upload."""
IN_A_PROCESS = 500
"""Cases per process. FastAPI keeps the routes of every app, and each case creates one."""
EXAMPLES = 8
"""Number of examples kept for a specimen."""
GOOD = ("right", "earlier", "refused")
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


def corrupt(folder: Path, cases: int) -> Outcome:
    """Corrupt files and restart. The server serves right data or an earlier state, or refuses and names the file."""
    return _corrupt([killed, stopped], folder, cases)


def corrupt_beside(folder: Path, cases: int) -> Outcome:
    """Corrupt files beside corpora. No index serves wrong data, and snapshots and uploads are complete or refused."""
    return _corrupt([indexed, kept, accepted, examined], folder, cases)


def _corrupt(specimens: Sequence[Callable[[Path], Specimen]], folder: Path, cases: int) -> Outcome:
    found, bad, details = Counter[str](), list[str](), dict[str, Any]()
    for made in specimens:
        specimen, outcomes, examples = made(folder / made.__name__), Counter[str](), list[str]()
        chosen = _drawn(specimen, cases // len(specimens))
        for case, (verdict, reason) in zip(chosen, judged(specimen, chosen, folder / "work"), strict=True):
            outcomes[f"{kind_of(case.file)}: {verdict}"] += 1
            found[verdict] += 1
            if verdict not in GOOD:
                examples.append(f"{made.__name__}: {case.how} byte {case.at} of {case.file}: {verdict}: {reason}")
        details[made.__name__] = dict(sorted(outcomes.items()))
        bad += examples[:EXAMPLES]
    kinds = {"wrong": "wrong data served", "unnamed": "refused without naming the file", "crash": "ended by a signal"}
    bounds = [Bound("cases", sum(found.values()), 1, at_least=True)]
    bounds += [Bound(text, found[kind], 0) for kind, text in kinds.items()]
    return Outcome(bounds, {**details, "examples": bad})


def _drawn(specimen: Specimen, number: int) -> Sequence[Case]:
    """Draw a number of cases, or all. Cases of emptied files are always included."""
    cases = list(specimen.cases())
    empty = [case for case in cases if not case.at and case.how == "cut"]
    others = [case for case in cases if case.at or case.how != "cut"]
    if len(others) > number:
        others = random.Random(number).sample(others, number)
    return [*empty, *others]


def judged(specimen: Specimen, cases: Sequence[Case], work: Path) -> Iterator[tuple[str, str]]:
    """Yield verdict and reason of each case. Cases run in processes that they may end, one per CPU at a time."""
    parts = [cases[start : start + IN_A_PROCESS] for start in range(0, len(cases), IN_A_PROCESS)]
    with ThreadPoolExecutor(cpus.available()) as pool:
        folders = (work / str(number) for number in range(len(parts)))
        for verdicts in pool.map(lambda part, folder: _judged(specimen, part, folder), parts, folders):
            yield from verdicts


def _judged(specimen: Specimen, cases: Sequence[Case], work: Path) -> list[tuple[str, str]]:
    task = Task(str(specimen.folder), str(work), specimen.states, specimen.look, specimen.subject)
    command = [sys.executable, "-m", "tests.serving.durability.damage"]
    verdicts: list[tuple[str, str]] = []
    while left := cases[len(verdicts) :]:
        lines = "\n".join([json.dumps(asdict(task)), *(json.dumps(asdict(case)) for case in left)])
        done = subprocess.run(
            command, cwd=ROOT, text=True, input=lines, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        for line in done.stdout.splitlines():
            verdict, reason = json.loads(line)
            verdicts.append((verdict, reason))
        if done.returncode and len(verdicts) < len(cases):
            verdicts.append(("crash", f"exit status {done.returncode}"))
    shutil.rmtree(work, ignore_errors=True)
    return verdicts
