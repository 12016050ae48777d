"""Every byte at the end of every file of the data folder, flipped or cut away with all behind it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.durability.bounds import Bound, Outcome
from benchmarks.durability.damage import Case
from benchmarks.durability.history import State
from benchmarks.durability.server import ROOT, home
from benchmarks.durability.traffic import Traffic
from models import cpus

END = 4096
"""Bytes of a file that are damaged, one at a time."""
WRITES = 60
"""Few enough that the log holds them all."""
IN_A_PROCESS = 500
"""Cases; FastAPI keeps the routes of every app there ever was, and each case has one."""
GOOD = ("right", "earlier", "refused")


@dataclass(frozen=True)
class Specimen:
    """A data folder as a server left it, and what may be found in it."""

    folder: Path
    states: Sequence[State]
    """Of its one writer, oldest first; the last is what it holds."""

    @property
    def files(self) -> list[str]:
        """Those that matter: the shared memory of SQLite is made anew, and a lock holds nothing."""
        found = (path for path in self.folder.rglob("*") if path.is_file() and path.stat().st_size)
        return sorted(str(path.relative_to(self.folder)) for path in found if not path.name.endswith("-shm"))

    def cases(self) -> Iterator[Case]:
        """Every byte of the last `END` of every file, flipped and cut."""
        for name in self.files:
            size = (self.folder / name).stat().st_size
            for at in range(max(0, size - END), size):
                for how in ("flip", "cut"):
                    yield Case(name, at, how)


def corrupt(folder: Path, cases: int) -> Outcome:
    """So many cases, or all: it starts and serves right data or an earlier state, or refuses and names the file."""
    found, bad, details = Counter[str](), list[str](), dict[str, Any]()
    for how in ("killed", "stopped"):
        specimen = _specimen(folder / how, killed=how == "killed")
        chosen = list(specimen.cases())
        if len(chosen) > cases // 2:
            chosen = random.Random(cases).sample(chosen, cases // 2)
        outcomes = Counter[str]()
        for case, (verdict, reason) in zip(chosen, judged(specimen, chosen, folder / "work"), strict=True):
            outcomes[f"{Path(case.file).name}: {verdict}"] += 1
            found[verdict] += 1
            if verdict not in GOOD:
                bad.append(f"{how}: {case.how} byte {case.at} of {case.file}: {verdict}: {reason}")
        details[how] = dict(sorted(outcomes.items()))
    kinds = {"wrong": "wrong data served", "unnamed": "refused without naming the file", "crash": "ended by a signal"}
    bounds = [Bound("cases", sum(found.values()), 1, at_least=True)]
    bounds += [Bound(text, found[kind], 0) for kind, text in kinds.items()]
    return Outcome(bounds, {**details, "examples": bad[:20]})


def _specimen(folder: Path, *, killed: bool) -> Specimen:
    at, traffic = home(folder), Traffic.of(1)
    writer = traffic.writers[0]
    with at.server() as server:
        traffic.check(server)
        writer.settle({})
        traffic.write(server, WRITES)
        if killed:
            server.kill()
        else:
            server.stop()
    return Specimen(at.data, writer.states)


def judged(specimen: Specimen, cases: Sequence[Case], work: Path) -> Iterator[tuple[str, str]]:
    """Of each case the verdict and why, from processes that a case may end: one for each CPU at a time."""
    parts = [cases[start : start + IN_A_PROCESS] for start in range(0, len(cases), IN_A_PROCESS)]
    with ThreadPoolExecutor(cpus.available()) as pool:
        folders = (work / str(number) for number in range(len(parts)))
        for verdicts in pool.map(lambda part, folder: _judged(specimen, part, folder), parts, folders):
            yield from verdicts


def _judged(specimen: Specimen, cases: Sequence[Case], work: Path) -> list[tuple[str, str]]:
    task = {"folder": str(specimen.folder), "work": str(work), "states": specimen.states}
    command = [sys.executable, "-m", "benchmarks.durability.damage"]
    verdicts: list[tuple[str, str]] = []
    while left := cases[len(verdicts) :]:
        lines = "\n".join([json.dumps(task), *(json.dumps(asdict(case)) for case in left)])
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
