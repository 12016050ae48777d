"""Ctrl-C, and a request to end, during a run: finish the step, then stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptedRun(Exception):
    """The run was asked to stop; it has saved itself first."""

    def __init__(self, says: str, *, again: str = "--resume") -> None:
        """`again` are the options with which the same command goes on."""
        super().__init__(says)
        self.again = again


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Gives a question: was Ctrl-C pressed? The second press interrupts at once, as everywhere."""
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
    """A request to end (SIGTERM) is what Ctrl-C is at that moment, of a run the end of its step; and a
    `KeyboardInterrupt` where Ctrl-C is ignored, as by nohup."""

    def as_ctrl_c(_signal: int, _frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, as_ctrl_c)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
