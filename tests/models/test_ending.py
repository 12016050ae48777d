from __future__ import annotations

import subprocess
import sys

import pytest

WAITING = """
import atexit, sys, threading
from models.cli.ending import NativeThread, leave

atexit.register(print, "shut down")
{thread}.start()
print("done")
leave(3)
"""


@pytest.mark.parametrize(
    ("thread", "said"),
    [
        ('NativeThread(threading.Event().wait, "native")', ["done"]),
        ("threading.Thread(target=threading.Event().wait, daemon=True)", ["done", "shut down"]),
    ],
)
def test_native_code_does_not_run_during_a_shutdown(thread: str, said: list[str]) -> None:
    left = subprocess.run(
        [sys.executable, "-c", WAITING.format(thread=thread)], check=False, capture_output=True, text=True
    )
    assert (left.returncode, left.stdout.split("\n")[:-1], left.stderr) == (3, said, "")
