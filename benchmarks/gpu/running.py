"""Execution of a part in its own process, which is ended with its children when its time is up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

from benchmarks.gpu.report import add_error
from benchmarks.gpu.setting import Setting

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "benchmarks.gpu.part")
GRACE = 5.0
"""Seconds of a part's limit that are hidden from it, for its own end and for a forced one."""
LAST_LINES = 15
"""Lines of a failed part's output that are shown."""


def carry_out(part: str, setting: Setting, seconds: float, program: Sequence[str] = PROGRAM) -> bool:
    """Run a part for at most so many seconds, and return whether everything succeeded."""
    began, file = time.monotonic(), setting.file(part)
    file.unlink(missing_ok=True)
    told = replace(setting, ends=began + seconds - GRACE)
    with TemporaryFile() as log:
        code = end_of([*program, part, told.to_json()], log.fileno(), seconds)
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    if code:
        print(*deque(lines, LAST_LINES), sep="\n", file=sys.stderr, flush=True)
    if code is None:
        add_error(file, part, setting.command, f"not done after {seconds:.0f} seconds, its limit")
    elif code not in (0, 1) or not file.exists():
        add_error(file, part, setting.command, f"ended with exit code {code}: {(lines or ['nothing was said'])[-1]}")
    print(f"{part}: {time.monotonic() - began:.0f} s, {'failed' if code != 0 else 'done'}: {file}", flush=True)
    return code == 0


def end_of(command: Sequence[str], log: int, seconds: float) -> int | None:
    """Wait for a process and return its exit code, or None if its time was up.

    The process leads a group. So the servers and workers that it started end with it and free the device.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(seconds - GRACE / 2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE / 2)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
