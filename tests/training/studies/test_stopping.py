"""Tests of processes that stop on request, and when their parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import PATIENCE

LIGHT = """
import os, sys, time
from unittest.mock import Mock
for name in ("results", "trial"):
    sys.modules[f"training.studies.{name}"] = Mock()
from training.studies.schedule import stop_with_parent
assert "torch" not in sys.modules
"""
"""Import of the function without the modules beside it that load torch, which would take longer than the tests."""
CHILD = (
    LIGHT
    + """
try:
    stop_with_parent(int(sys.argv[1]))
    print(os.getpid(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
)
SLOW_TO_STOP = (
    LIGHT
    + """
try:
    stop_with_parent(int(sys.argv[1]))
    print("begun", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("stopping", flush=True)
    sys.stdin.readline()
    print("stopped", flush=True)
"""
)
PARENT = """
import os, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], start_new_session=True)
child.wait()
"""


@pytest.mark.parametrize("how", ["parent killed", "SIGTERM", "SIGINT"])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_a_child_stops_with_its_parent_and_when_it_is_asked(how: str) -> None:
    """Use a parent that ignores Ctrl-C."""
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        if how == "parent killed":
            parent.kill()
        else:
            os.kill(child, signal.Signals[how])
        assert parent.stdout.read() == "stopped\n"


def test_a_child_that_is_asked_again_ends_what_it_does() -> None:
    command = [sys.executable, "-c", SLOW_TO_STOP, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        for said in ("begun", "stopping"):
            assert child.stdout.readline() == f"{said}\n"
            child.terminate()
        assert child.communicate("go on\n", timeout=PATIENCE)[0] == "stopped\n"
    assert child.returncode == 0


def test_a_child_that_comes_too_late_does_not_begin() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, "1"], stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == "stopped\n"
