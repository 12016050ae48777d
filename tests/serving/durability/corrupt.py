"""Corruption: every byte at the end of every data file is flipped, or cut off with everything behind it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from models import cpus
from tests.serving.durability.bounds import Bound, Outcome
from tests.serving.durability.damage import Case, Task
from tests.serving.durability.server import ROOT
from tests.serving.durability.specimens import Specimen, accepted, examined, indexed, kept, killed, kind_of, stopped

IN_A_PROCESS = 500
"""Cases per process. FastAPI keeps the routes of every app, and each case creates one."""
EXAMPLES = 8
"""Number of examples kept for a specimen."""
GOOD = ("right", "earlier", "refused")


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
