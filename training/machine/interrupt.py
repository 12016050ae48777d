"""Interruption of a run by Ctrl-C or SIGTERM after the current step, and the lock on the run's folder."""

from __future__ import annotations

import fcntl
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from models.errors import Refused


class InterruptedRun(Exception):
    """The run was asked to stop and has saved a checkpoint."""

    def __init__(self, says: str, *, again: str = "--resume") -> None:
        """Store the message, and the options `again` with which the same command resumes."""
        super().__init__(says)
        self.again = again


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed. A second Ctrl-C interrupts immediately.

    Only the main thread gets signals. If another thread enters the `with` block, the function always returns False.
    """
    pressed = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

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
    """Handle SIGTERM like Ctrl-C inside the `with` block.

    During a run, SIGTERM therefore stops the run at the end of the step. If the process ignores Ctrl-C, as background
    jobs of a script do, SIGTERM is not ignored but raises `KeyboardInterrupt`. Outside the main thread, the context
    does nothing, because only the main thread gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def as_ctrl_c(_signal: int, _frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, as_ctrl_c)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# A file lock, which one process at a time can have. The system releases the lock if the process dies.

LOCK = "lock"


class LockError(Refused):
    """Another process has locked the folder. The message names the folder."""


@contextmanager
def locked(folder: Path, *, wait: bool = False, name: str = LOCK) -> Iterator[None]:
    """Lock `folder` inside the `with` block, by means of the file `name` in the folder. Create the folder if needed.

    Raises:
        LockError: another process has the lock, and `wait` is false.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise LockError(f"{folder}: another process is using this folder") from error
        yield
