"""Runs of a study as tasks of a Ray cluster.

Each task starts the same process that a study on one machine starts, so results are the same. All nodes must share the
study's folder. If Ray repeats a task after the loss of a node, the run resumes from its last checkpoint on another
node.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from models.cluster import alive_nodes, connected, own_errors
from models.errors import Failed, Refused
from training.studies.results import LOG, run_folder
from training.studies.schedule import Failure, Processes, is_locked
from training.studies.trial import Trial

SECONDS_TO_SAVE = 60
"""Maximum seconds to wait until a process has finished its step and saved a checkpoint."""
POLL_SECONDS = 0.2


def share(nodes: Sequence[Mapping[str, float]], *, threads: int | None, device: str) -> dict[str, Any]:
    """Return the resources that Ray reserves for a run, as the arguments `num_cpus` and `num_gpus` of `ray.remote`.

    A run gets one GPU if the cluster has GPUs and the device is not the CPU. A run gets `threads` CPUs.

    If `threads` is None, the number of CPUs depends on the nodes. A run without a GPU gets as many CPUs as the smallest
    node has. A run with a GPU gets the smallest number of CPUs per GPU among the nodes with GPUs.

    Args:
        nodes: resources of each node, by Ray's names.
        device: device of the run.

    Raises:
        Refused: no node has enough CPUs for a run. If the run gets a GPU, only nodes with GPUs count.
    """
    gpus = int(device != "cpu" and any(node.get("GPU", 0) >= 1 for node in nodes))
    able = [node for node in nodes if node.get("CPU", 0) >= 1 and node.get("GPU", 0) >= gpus]
    cpus = threads or max(1, int(min((node["CPU"] // (node["GPU"] if gpus else 1) for node in able), default=1)))
    if not any(node["CPU"] >= cpus for node in able):
        largest = int(max((node["CPU"] for node in able), default=0))
        raise Refused(f"the cluster is too small: a run needs {cpus} CPUs, and the largest node has {largest}")
    return {"num_cpus": cpus, "num_gpus": gpus}


@contextmanager
def tasks(address: str | None, *, threads: int | None) -> Iterator[Tasks]:
    """Connect to the Ray cluster at `address` (see `models.cluster.connected`), and yield an executor of runs.

    Raises:
        Refused: no cluster answers, or Ray is not installed or not supported.
        Failed: Ray does not start on this machine.
    """
    with connected(address), own_errors():
        yield Tasks(threads)


class Tasks:
    """A callable that carries out runs as Ray tasks, and can stop all of them."""

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._lock = Lock()
        self._tasks: list[Any] = []
        self._stopped = False

    def __call__(self, trial: Trial, study: Path) -> Failure | None:
        """Carry out a run when resources are free. Return a failure, or None if the run finished or was stopped.

        Raises:
            Refused: the cluster is too small, or a node does not have the study's folder.
        """
        import ray
        from ray.exceptions import TaskCancelledError, WorkerCrashedError

        reserved = share(alive_nodes(), threads=self._threads, device=trial.config.device)
        with self._lock:
            if self._stopped:
                return None
            task = ray.remote(**reserved)(carry_out).remote(trial, study, Path.cwd())
            self._tasks.append(task)
        try:
            with own_errors():
                try:
                    failure: Failure | None = ray.get(task)
                except (TaskCancelledError, WorkerCrashedError):
                    if not self._stopped:
                        raise
                    failure = None
                    _wait_until_saved(run_folder(trial, study))
            return failure
        except Failed as lost:  # Ray repeats a task only a limited number of times after the loss of a node.
            log = run_folder(trial, study) / LOG
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                print(lost, file=file)
            return Failure(trial, log, code=1)

    def stop(self) -> None:
        """Stop all runs. Each run finishes its current step and saves a checkpoint.

        When a run has saved its checkpoint, the `__call__` that carries out this run returns.
        """
        import ray

        with self._lock:
            self._stopped = True
            for task in self._tasks:
                # With `force`, Ray would kill the run's process before the process has saved a checkpoint.
                ray.cancel(task)


def carry_out(trial: Trial, study: Path, folder: Path) -> Failure | None:
    """Carry out a run on this node, in a process of its own. Return a failure, or None if the run finished.

    The run saves a checkpoint if Ray cancels the task.

    Args:
        folder: working folder of the command that started the study. Paths such as `study` are relative to it.

    Raises:
        Refused: this node does not have the study's folder.
    """
    if not (folder / study).is_dir():
        raise Refused(f"{study}: the node {socket.gethostname()} has no such folder; all nodes must share it")
    os.chdir(folder)  # Change to the study's working folder, because the study's paths are relative to it.
    # Ray interrupts a task by SIGINT. A worker ignores this signal if its cluster was started in the background of a
    # shell.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _wait_until_saved(run_folder(trial, study))
    processes = Processes()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(processes, trial, study)
        try:
            while not run.done():
                # Wait in short intervals, because Ray can interrupt Python code but not a call that waits for a
                # process.
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            processes.stop()
            raise
    return run.result()


def _wait_until_saved(run: Path) -> None:
    """Wait until no process works on the run in the folder `run`, for at most `SECONDS_TO_SAVE` seconds.

    When a task is cancelled or its worker is lost, the run's process still finishes its step and saves a checkpoint.
    """
    deadline = time.monotonic() + SECONDS_TO_SAVE
    while is_locked(run) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
