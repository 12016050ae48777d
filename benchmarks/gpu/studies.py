"""Studies of the papers' ablations with minilm as the initial encoder, with concurrent runs on one device.

Their results are appended to those of the CPU runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.encoders import TINY, backbone
from benchmarks.gpu.part import device
from benchmarks.gpu.parts import JOBS, STUDIES, Report, Setting
from models import cpus
from models.bundle.disk import make_folder, write_whole
from training.studies.description import name_of
from training.studies.results import RESULTS
from training.studies.schedule import STOPPED

TO_END = 10.0
"""Seconds in which stopped runs may finish their current step."""
LEAST = 25.0
"""Minimum remaining seconds with which a study is started, because a run needs this long."""
FAILED = 1
"""Exit status of a study with a failed run."""
ENDED = (0, FAILED, STOPPED)
"""Exit statuses of a study that has written results."""
REHEARSAL = """
[base]
objective = "simcse"
backbone = "{backbone}"
device = "cpu"
max_steps = 2
eval_every = 2
batch_size = 8

[grid]
seed = [0, 1]
"""


def measure(setting: Setting, report: Report) -> None:
    """Run one study after the other until the time is up.

    Results of unfinished runs are lost.
    """
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files, jobs = ((_rehearsal(folder),), 2) if setting.tiny else (STUDIES, JOBS)
        for file in files:
            name = name_of(Path(file))
            out = folder / "studies" / name
            if setting.left < LEAST:
                report.keep(name, {"left_out": "no time was left"})
                continue
            with report.attempt(name):
                code = carried_out(file, out, jobs, setting)
                if code not in ENDED:
                    raise RuntimeError(f"`training study run` ended with exit code {code}")
                kept = Path(setting.to).parent / "studies" / f"{name}.jsonl"
                lines = (out / RESULTS).read_text(encoding="utf-8").splitlines()
                new = append(lines, kept, device(setting)["name"])
                report.keep(
                    name, {"jobs": jobs, "finished": len(lines), "new": new, "to": f"{name}.jsonl", **speeds(lines)}
                )
                if code == FAILED:
                    report.fail(f"{name}: a run failed")


def carried_out(file: str, out: Path, jobs: int, setting: Setting) -> int:
    """Run a study by its command, stop it when the part's time is up, and return the exit status."""
    command = [sys.executable, "-m", "training", "study", "run", file, "--jobs", str(jobs), "--out", str(out)]
    command += ["--data", setting.data] if setting.data else []
    command += ["--corpus", *setting.corpus] if setting.corpus else []
    threads = str(max(1, cpus.available() // jobs))  # Divide the CPUs, because each run would use all of them.
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": threads})
    with suppress(subprocess.TimeoutExpired):
        return process.wait(max(setting.left - TO_END, 1.0))
    process.terminate()
    return process.wait()


def append(lines: Sequence[str], to: Path, where: str) -> list[str]:
    """Append runs to a file that lacks them, with the name of their device, and return the ids of the appended runs."""
    before = to.read_text(encoding="utf-8") if to.exists() else ""
    there = {json.loads(line)["id"] for line in before.splitlines()}
    new = [run for run in map(json.loads, lines) if run["id"] not in there]
    make_folder(to.parent)
    write_whole(to, before + "".join(json.dumps(run | {"device": where}) + "\n" for run in new))
    return [run["id"] for run in new]


def speeds(lines: Sequence[str]) -> Mapping[str, Any]:
    """Return the seconds of each run by kind of work."""
    return {"seconds_of_runs": [json.loads(line)["seconds"] for line in lines]}


def _rehearsal(folder: Path) -> str:
    """Write a study file with two short runs, and return its path."""
    file = folder / "rehearsal.toml"
    file.write_text(REHEARSAL.format(backbone=backbone(TINY, folder / "tiny")), encoding="utf-8")
    return str(file)
