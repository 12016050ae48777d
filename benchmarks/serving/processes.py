"""Resource use of a process and of the whole machine, from Linux's /proc."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
_SCHED = 2
"""Linux's constant CPUCLOCK_SCHED, for the CPU time that the scheduler counts."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def ask(process: subprocess.Popen[str], content: Any) -> dict[str, Any]:
    """Write a line of JSON to a process, and return the JSON of the line that it answers.

    Raises:
        BrokenPipeError, EOFError: the process has ended.
    """
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(content) + "\n")
    process.stdin.flush()
    if not (line := process.stdout.readline()):
        raise EOFError(f"{process.args!r} has ended")
    return dict(json.loads(line))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its living descendants, including children that they have waited for."""
    return sum(sum(map(int, _stat(one)[11:15])) for one in tree(pid)) / TICKS_PER_S


def cpu_clock(pid: int) -> float:
    """Return the CPU seconds of a process alone, with a resolution of nanoseconds.

    The clock id is computed as in clock_getcpuclockid(3).
    """
    return time.clock_gettime(~pid << 3 | _SCHED)


def is_runnable(pid: int) -> bool:
    """Return whether a thread of the process is running or waits for a CPU."""
    stats = (PROC / str(pid) / "task").glob("*/stat")
    return any(stat.read_text().rpartition(")")[2].split()[0] == "R" for stat in stats)


def memory_mb(pid: int) -> int:
    """Return the resident memory of a process and its descendants in MB. Shared pages are counted once per process."""
    pages = sum(int(_stat(one)[21]) for one in tree(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") // 1_000_000


def read_bytes(pid: int) -> int:
    """Return the number of bytes that the process has read from disks (proc_pid_io(5))."""
    lines = (PROC / str(pid) / "io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def tree(pid: int) -> Iterator[int]:
    """Yield the ids of a process and its descendants."""
    yield pid
    for thread in (PROC / str(pid) / "task").iterdir():
        # A thread may end during the loop, so its file may be missing.
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in (thread / "children").read_text().split():
                yield from tree(int(child))


@dataclass(frozen=True)
class Machine:
    """CPU times of the machine since its start, over all CPUs, in seconds."""

    busy: float
    """CPU seconds used by any process, or taken by other virtual machines on the same host (steal)."""
    waiting: float | None
    """Seconds in which some process was ready to run and had no CPU. None if the kernel does not report this."""

    @classmethod
    def now(cls) -> Machine:
        """Return the current times from /proc/stat and /proc/pressure/cpu."""
        fields = (PROC / "stat").read_text().splitlines()[0].split()[1:9]
        user, nice, system, _idle, _io, *interrupts_and_steal = map(int, fields)
        file = PROC / "pressure" / "cpu"
        waiting = float(file.read_text().split("total=")[1].split()[0]) / 1e6 if file.exists() else None
        return cls((user + nice + system + sum(interrupts_and_steal)) / TICKS_PER_S, waiting)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the process name. The name may contain any characters."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
