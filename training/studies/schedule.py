"""Scheduler of a study. It starts one or several runs at a time, each in a process of its own.

The processes run on this machine, or on the machines of a Ray cluster (`training.studies.on_ray`). Each process locks
the folder of its run. When a study is stopped, its runs are stopped, too.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Protocol, TextIO

from models.bundle.disk import write_whole
from models.errors import Refused
from training.machine.interrupt import LOCK, LockError, locked, terminable
from training.studies.results import LOG, TRIAL, RunRecord, collect_results, read_result, result_or_none, run_folder
from training.studies.trial import StudyError, Trial

STOPPED = 130
"""Exit code of a process that was interrupted and whose run can be resumed."""

LOCKED_ELSEWHERE = 75
"""Exit code of a process whose run is locked by another process: EX_TEMPFAIL of sysexits.h."""

LAST_LINES = 5
"""Number of lines of a failed run's log that are shown."""


@dataclass(frozen=True)
class Failure:
    """A failed attempt to carry out a run. The run itself may be active in another process (see `elsewhere`)."""

    trial: Trial
    log: Path
    code: int
    """Exit code of the process. A negative code is the number of the signal that killed the process."""

    @property
    def elsewhere(self) -> bool:
        """True if another process works on the run."""
        return self.code == LOCKED_ELSEWHERE

    def __str__(self) -> str:
        if self.elsewhere:
            return f"{self.trial.title} ({self.trial.id}): active in another process"
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = "".join(f"\n    {line}" for line in lines[-LAST_LINES:])
        ended = f"was killed by signal {-self.code}" if self.code < 0 else "failed"
        return f"{self.trial.title} ({self.trial.id}) {ended}; the end of {self.log}:{shown}"


class Carrier(Protocol):
    """Protocol of an executor of runs, such as local processes or Ray tasks."""

    def __call__(self, trial: Trial, study: Path) -> Failure | None:
        """Carry out a run. Return a failure, or None if the run finished or was stopped."""

    def stop(self) -> None:
        """Stop all active runs. Each run saves a checkpoint before it ends. No further run starts."""


class Processes:
    """A callable that carries out each run in a process of its own on this machine, and can stop all runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._live: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def __call__(self, trial: Trial, study: Path) -> Failure | None:
        """Start a run's process and wait for its end. Return a failure, or None if the run finished or was stopped."""
        folder = run_folder(trial, study)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / TRIAL, trial.to_json())
        with (folder / LOG).open("ab") as log:
            with self._lock:
                if self._stopped:
                    return None
                # The run's process has a session of its own. So Ctrl-C in a terminal reaches only the study's process,
                # which passes the signal on once.
                # With -P, a `training` in the working directory is not run instead of ours.
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "training.studies", str(folder), str(os.getpid())],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
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
        """Stop all runs. No further run starts.

        A run that has begun finishes its step and saves a checkpoint. A process whose run has not begun exits at once.
        """
        with self._lock:
            self._stopped = True
            for process in self._live:
                process.send_signal(signal.SIGTERM)


def run_trials(
    trials: Sequence[Trial],
    study: Path,
    stream: TextIO,
    carry_out: Carrier,
    *,
    jobs: int = 1,
    record: RunRecord | None = None,
) -> list[Failure]:
    """Carry out all runs without a result, `jobs` at a time, and return the failed runs.

    A failed run does not stop the remaining runs. Runs in `record` are not carried out, and each finished run is added
    to `record`. Progress goes to `stream`.

    Raises:
        StudyError: a line of the record is broken.
        KeyboardInterrupt: the user pressed Ctrl-C, or this process received SIGTERM. The active runs have saved
            checkpoints.
        OSError, Refused: the study's folder can't be written, or a node of the cluster does not have this folder. The
            active runs have saved checkpoints.
    """
    recorded = record.find(trials) if record else {}
    due = _unfinished([trial for trial in trials if trial.id not in recorded], study, stream)
    if record:
        for trial in trials:
            _add(trial, study, record)

    def start(trial: Trial) -> Failure | None:
        # Another process can have recorded the run in the meantime.
        return None if record and record.find([trial]) else carry_out(trial, study)

    different = len({trial.id for trial in trials})
    print(f"{different} runs, {different - len(due)} of them finished before", file=stream, flush=True)
    failures = []
    with terminable(), ThreadPoolExecutor(jobs) as pool:
        try:
            futures: dict[Future[Failure | None], Trial] = {pool.submit(start, each): each for each in due}
            for number, future in enumerate(as_completed(futures), start=1):
                failure, trial = future.result(), futures[future]
                if record and not failure:
                    _add(trial, study, record)
                collect_results(trials, study, record.find(trials) if record else {})
                if failure:
                    failures.append(failure)
                print(f"{number}/{len(due)} {failure or f'{trial.title}: done ({trial.id})'}", file=stream, flush=True)
        except (KeyboardInterrupt, OSError, Refused):
            carry_out.stop()
            raise
    return failures


def _add(trial: Trial, study: Path, record: RunRecord) -> None:
    """Add the run to the record if the run has a result in the study's folder."""
    if values := result_or_none(run_folder(trial, study)):
        record.add(trial, values)


def _unfinished(trials: Sequence[Trial], study: Path, stream: TextIO) -> list[Trial]:
    """Return a trial for each run that has no usable result. If several trials have the same id, return only one.

    A damaged result is not usable, and is reported to `stream`.
    """
    unfinished = []
    for trial in {each.id: each for each in trials}.values():
        try:
            result = read_result(run_folder(trial, study))
        except StudyError as error:
            result = None
            print(f"{error}: damaged, so {trial.title} is carried out again", file=stream, flush=True)
        if result is None:
            unfinished.append(trial)
    return unfinished


# Locks that show whether a process works in a run's folder.

ATTEMPTS, PAUSE = 20, 0.05
"""Number of attempts to lock a folder, and seconds between two attempts."""


def is_locked(folder: Path) -> bool:
    """Return whether another process has locked the folder.

    The check takes a shared lock for an instant, so any number of processes can check at the same time. A process that
    wants the exclusive lock retries if a check is in progress.
    """
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def locked_with_retry(folder: Path) -> Iterator[None]:
    """Lock the folder during the `with` block. A missing folder is created.

    A check by `is_locked` also locks the folder for an instant. A failed attempt is therefore repeated, for about a
    second.

    Raises:
        LockError: another process keeps the folder locked.
    """
    with ExitStack() as stack:
        for left in reversed(range(ATTEMPTS)):
            try:
                stack.enter_context(locked(folder))
                break
            except LockError:
                if not left:
                    raise
                time.sleep(PAUSE)
        yield


# Signals that stop a study. Its runs then finish their step and save a checkpoint.

PR_SET_PDEATHSIG = 1
"""Option PR_SET_PDEATHSIG of Linux's prctl(2)."""


def stop_with_parent(parent: int) -> None:
    """Make sure that this process stops on SIGINT and SIGTERM and, on Linux, when its parent ends.

    `parent` is the process id of the parent.

    Raises:
        KeyboardInterrupt: the parent has already ended.
    """
    # A process inherits ignored and blocked signals. The parent may be a study that ignores SIGINT, or a worker of Ray
    # that blocks SIGINT.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    if sys.platform == "linux":
        # A parent that is killed by SIGKILL can't signal its runs, so the system signals them. The system does so when
        # the thread that started this process ends. Therefore, that thread waits for this process.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise KeyboardInterrupt


def _as_ctrl_c(_signal: int, _frame: FrameType | None) -> None:
    # The signal is handled only once. The system sends it for each thread of a killed parent, and a second Ctrl-C would
    # interrupt the step.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)
