"""Places where the server can be made to die, fail or wait: what the variable may say, and that each place exists."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.operations import failpoints
from serving.operations.failpoints import VARIABLE, FailpointsError, arm, reach
from tests.conftest import PATIENCE
from tests.serving.durability.trials import PLACES

SERVING = Path(failpoints.__file__).parents[1]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm({})


def test_nothing_happens_unless_the_environment_says_so() -> None:
    arm({})
    reach("store.before-commit")
    arm({VARIABLE: "store.after-commit=raise"})
    reach("store.before-commit")


def test_an_error_has_the_number_asked_for_at_the_turn_asked_for() -> None:
    arm({VARIABLE: "a.b=raise:ENOSPC@2, c.d=raise"})
    reach("a.b")
    with pytest.raises(OSError, match=r"a\.b") as raised:
        reach("a.b")
    assert raised.value.errno == errno.ENOSPC
    reach("a.b")
    for _ in range(2):
        with pytest.raises(OSError) as raised:
            reach("c.d")
        assert raised.value.errno == errno.EIO


def test_it_waits_for_a_file_to_go(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    arm({VARIABLE: f"a.b=hold:{held}"})
    waiting = threading.Thread(target=reach, args=["a.b"])
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    held.unlink()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_it_kills_the_process_at_the_turn_asked_for() -> None:
    script = (
        "import os; from serving.operations.failpoints import *; "
        "arm(os.environ); [reach('a.b') or print(i) for i in range(5)]"
    )
    ended = subprocess.run(
        [sys.executable, "-u", "-c", script],
        env={VARIABLE: "a.b=kill@3"},
        cwd=SERVING.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split()) == (-9, ["0", "1"])


@pytest.mark.parametrize(
    "spec", ["a.b", "a=kill", "a.b=explode", "a.b=kill@0", "a.b=raise:ENOSUCH", "a.b=hold", "a.b=kill:x", "a.b=kill,x"]
)
def test_a_bad_spec_refuses_to_start_and_is_named(spec: str) -> None:
    with pytest.raises(FailpointsError, match=re.escape(spec.rsplit(",", maxsplit=1)[-1])):
        arm({VARIABLE: spec})


def test_the_server_says_so_in_one_line() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "serving"],
        env={VARIABLE: "a.b=explode"},
        cwd=SERVING.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "a.b=explode" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_every_place_is_killed_at() -> None:
    called = re.compile(r'\breach\("([^"]+)"\)')
    found = {name for file in SERVING.rglob("*.py") for name in called.findall(file.read_text())}
    assert sorted(found) == sorted(PLACES)
