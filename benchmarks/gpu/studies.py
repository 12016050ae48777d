"""Studies of the papers' ablations with minilm as the initial encoder, with concurrent runs on one device.

The studies add their runs to a record, and do not repeat the runs in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.encoders import TINY, backbone
from benchmarks.gpu.parts import JOBS, STUDIES, Report, Setting
from models import cpus
from training.studies.description import name_of
from training.studies.results import RESULTS, RunRecord
from training.studies.schedule import STOPPED

RECORD = "papers_gpu.jsonl"
"""Record of these runs, apart from the papers' pages, because they have another corpus and weights in float16."""
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
    """Run one study after the other until the time is up. Unfinished runs are lost."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files, jobs = ((_rehearsal(folder),), 2) if setting.tiny else (STUDIES, JOBS)
        record = RunRecord(Path(setting.to).parent / "studies" / RECORD)
        for file in files:
            name = name_of(Path(file))
            out = folder / "studies" / name
            if setting.left < LEAST:
                report.keep(name, {"left_out": "no time was left"})
                continue
            with report.attempt(name):
                before = {line["id"] for line in record.lines()}
                code = carried_out(file, out, jobs, setting, record)
                if code not in ENDED:
                    raise RuntimeError(f"`training study run` ended with exit code {code}")
                finished = len((out / RESULTS).read_text(encoding="utf-8").splitlines())
                new = {line["id"]: line["seconds"] for line in record.lines() if line["id"] not in before}
                runs = {"new": list(new), "to": RECORD, "seconds_of_runs": list(new.values())}
                report.keep(name, {"jobs": jobs, "finished": finished, **runs})
                if code == FAILED:
                    report.fail(f"{name}: a run failed")


def carried_out(file: str, out: Path, jobs: int, setting: Setting, record: RunRecord) -> int:
    """Run a study by its command, stop it when the part's time is up, and return the exit status."""
    command = [sys.executable, "-m", "training", "study", "run", file, "--jobs", str(jobs), "--out", str(out)]
    command += ["--record", str(record.file)]
    command += ["--data", setting.data] if setting.data else []
    command += ["--corpus", *setting.corpus] if setting.corpus else []
    threads = str(max(1, cpus.available() // jobs))  # Divide the CPUs, because each run would use all of them.
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": threads})
    with suppress(subprocess.TimeoutExpired):
        return process.wait(max(setting.left - TO_END, 1.0))
    process.terminate()
    return process.wait()


def _rehearsal(folder: Path) -> str:
    """Write a study file with two short runs, and return its path."""
    file = folder / "rehearsal.toml"
    file.write_text(REHEARSAL.format(backbone=backbone(TINY, folder / "tiny")), encoding="utf-8")
    return str(file)
