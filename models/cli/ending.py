"""Threads for native code that can't be interrupted, and the exit of a process in which such threads still run."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import NoReturn, TypeVar

T = TypeVar("T")


class NativeThread(threading.Thread):
    """Daemon thread that runs native code for a long time, such as the construction of an index."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)


def in_native_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run `work` in a `NativeThread`, and return a future for the result. The future can't be cancelled."""
    outcome = Future[T]()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # whoever waits for the future gets this exception
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    NativeThread(run, name).start()
    return outcome


def leave(status: int) -> NoReturn:
    """End the process with exit code `status`.

    While a `NativeThread` runs, Python's shutdown is skipped, because native code may crash during the shutdown.
    """
    if any(isinstance(thread, NativeThread) for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
