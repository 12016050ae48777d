"""Signals that stop a study: its runs finish their step and save a checkpoint."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType

PR_SET_PDEATHSIG = 1
"""Constant of Linux's prctl(2)."""


def follow(parent: int) -> None:
    """Stop this process on SIGINT, on SIGTERM, and when its parent ends.

    Raises:
        KeyboardInterrupt: the parent has already ended.
    """
    # A study started with SIGINT ignored passes that on, and could not stop its runs otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    if sys.platform == "linux":
        # A parent killed by SIGKILL can't signal its runs, so the system does. It does so when the thread that started
        # this process ends. That thread waits for this process.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise KeyboardInterrupt


def _as_ctrl_c(_signal: int, _frame: FrameType | None) -> None:
    # The signal is handled once. The system sends it for each thread of a killed parent, and a second Ctrl-C would
    # interrupt the step.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)
