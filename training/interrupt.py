"""Handling of Ctrl-C and SIGTERM during a run: finish the step, then stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptedRun(Exception):
    """The run was asked to stop and has saved a checkpoint."""

    def __init__(self, says: str, *, again: str = "--resume") -> None:
        """Store `again`, the options with which the same command resumes."""
        super().__init__(says)
        self.again = again


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed. The second press interrupts immediately."""
    pressed = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def terminable() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C. During a run both stop at the end of the step.

    If Ctrl-C is ignored, as under nohup, SIGTERM raises `KeyboardInterrupt`.
    """

    def as_ctrl_c(_signal: int, _frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, as_ctrl_c)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
