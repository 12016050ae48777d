"""Processes that stop, and that follow one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import PATIENCE
from training.study.stopping import terminable

CHILD = """
import os, sys, time
from training.study.stopping import follow
try:
    follow(int(sys.argv[1]))
    print(os.getpid(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
PARENT = """
import os, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], start_new_session=True)
child.wait()
"""


def test_a_request_to_end_is_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("how", ["parent killed", "SIGTERM", "SIGINT"])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_a_child_stops_with_its_parent_and_when_it_is_asked(how: str) -> None:
    """Whose parent ignores Ctrl-C."""
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        if how == "parent killed":
            parent.kill()
        else:
            os.kill(child, signal.Signals[how])
        assert parent.stdout.read() == "stopped\n"


def test_a_child_that_comes_too_late_does_not_begin() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, "1"], stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == "stopped\n"
