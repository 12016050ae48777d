"""The scheduler of a study: runs one after the other or several at once, each in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from threading import Lock
from typing import TextIO

from models.bundle.disk import write_whole
from training.interrupt import terminable
from training.study.results import LOG, TRIAL, collect, finished, folder_of, measured
from training.study.trial import StudyError, Trial

STOPPED = 130
"""Exit code of a process that was interrupted and can resume."""

ELSEWHERE = 75
"""Exit code of a process if another process already works on its run: EX_TEMPFAIL of sysexits.h."""

LAST_LINES = 5
"""Number of lines that are shown of a failed run's log."""


@dataclass(frozen=True)
class Failure:
    """A run that ended without a result."""

    trial: Trial
    log: Path
    code: int
    """Exit code of the process."""

    @property
    def elsewhere(self) -> bool:
        """Return whether another process works on the run."""
        return self.code == ELSEWHERE

    def __str__(self) -> str:
        if self.elsewhere:
            return f"{self.trial.title} ({self.trial.id}): at work elsewhere"
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = "".join(f"\n    {line}" for line in lines[-LAST_LINES:])
        return f"{self.trial.title} ({self.trial.id}) failed; the end of {self.log}:{shown}"


class Processes:
    """A starter of processes that can stop all of them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._live: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def __call__(self, trial: Trial, study: Path) -> Failure | None:
        """Start the run and wait for it. A stopped run is no failure."""
        folder = folder_of(trial, study)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / TRIAL, trial.to_json())
        with (folder / LOG).open("ab") as log:
            with self._lock:
                if self._stopped:
                    return None
                # The process gets its own session, so that Ctrl-C in a terminal reaches only this process, which passes
                # it on once.
                process = subprocess.Popen(
                    [sys.executable, "-m", "training.study", str(folder), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._live.add(process)
            code = process.wait()
        with self._lock:
            self._live.discard(process)
            return Failure(trial, folder / LOG, code) if code and not self._stopped else None

    def stop(self) -> None:
        """Stop all runs.

        A run finishes its step and saves a checkpoint. A process that has not begun its run ends at once.
        """
        with self._lock:
            self._stopped = True
            for process in self._live:
                process.send_signal(SIGTERM)


def carry_out_all(trials: Sequence[Trial], study: Path, stream: TextIO, *, jobs: int = 1) -> list[Failure]:
    """Carry out all runs without a result, `jobs` at once.

    A failure does not stop other runs.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when the active runs have saved checkpoints.
        OSError: the study's folder can't be written. It is also raised after the active runs have saved checkpoints.
    """
    due = _due(trials, study, stream)
    different = len({trial.id for trial in trials})
    print(f"{different} runs, {different - len(due)} of them finished before", file=stream, flush=True)
    processes, failures = Processes(), []
    with terminable(), ThreadPoolExecutor(jobs) as pool:
        try:
            futures: dict[Future[Failure | None], Trial] = {pool.submit(processes, each, study): each for each in due}
            for number, future in enumerate(as_completed(futures), start=1):
                failure, trial = future.result(), futures[future]
                collect(trials, study)
                if failure:
                    failures.append(failure)
                print(f"{number}/{len(due)} {failure or f'{trial.title}: done ({trial.id})'}", file=stream, flush=True)
        except (KeyboardInterrupt, OSError):
            processes.stop()
            raise
    return failures


def _due(trials: Sequence[Trial], study: Path, stream: TextIO) -> list[Trial]:
    """Return the distinct runs without a result. Report damaged results."""
    due = {trial.id: trial for trial in trials if not finished(folder_of(trial, study))}
    for trial in due.values():
        try:
            measured(folder_of(trial, study))
        except StudyError as error:
            print(f"{error}: damaged, so {trial.title} is carried out again", file=stream, flush=True)
    return list(due.values())
