"""How a study is stopped: whatever asks it to, its runs finish their step and save themselves."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2)."""


def follow(parent: int) -> None:
    """From now on this process is stopped by SIGINT and SIGTERM alike, and when its parent is gone.

    Raises:
        KeyboardInterrupt: the parent is gone already.
    """
    # A study that is started with SIGINT ignored hands that down, and could then not stop its runs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    if sys.platform == "linux":
        # Who is killed by SIGKILL can't tell its runs: the system does. It does so when the thread ends that started
        # this process, and that thread waits for this process.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise KeyboardInterrupt


def _as_ctrl_c(_signal: int, _frame: FrameType | None) -> None:
    # Once: the system says it for each thread of a killed parent, and a second Ctrl-C would not wait for the step.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)
