"""Killed at any step, or two at once: what is served is always a whole bundle, and the next command goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models import bundle
from tests.conftest import PATIENCE
from training.promotion.ledger import Ledger
from training.promotion.place import Place

ROOT = Path(__file__).resolve().parents[3]
Command = Callable[..., int]
Killed = Callable[..., dict[str, Any]]

KILLED = """
import io, json, os, shutil, sys, tempfile, warnings
from pathlib import Path
import numpy as np
from models import bundle
from models.runtimes import REFERENCE
from training.evaluation.bootstrap import Comparison
from training.promotion import checks, history
from training.promotion.engines import Machine
from training.promotion.place import Place
from training.promotion.promote import Terms, promote
from training.promotion.yardsticks import Judged

class Equal:
    metric = sample = "equal"
    named: str | None = None
    limits = {"equal": 0.2}
    def judge(self, encode): return Judged(80.0, np.zeros(2))
    def compare(self, a, b): return Comparison(0.0, 0.0, 0.0, 0.5)
    def scores(self, encode): return {"equal": 80.0}

plain = Machine(graphs=lambda *_: {REFERENCE: None})
checks.golden_cosine = history.golden_cosine = lambda *_, **__: 1.0  # no session: nothing that a fork would break
CHANGES = {"os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "open"}
def child(work, kill_at=None):
    pid = os.fork()
    if pid == 0:
        left = [kill_at]
        def hook(event, given):
            if left[0] is None or event not in CHANGES:
                return
            if event == "open" and not (isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)):
                return
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
        sys.addaudithook(hook)
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def act(verb, place):
    if verb == "promote":
        decided = promote(place.default.parent / "other", place, Terms(), Equal, stream=io.StringIO(), machine=plain)
        assert decided.outcome == "promoted"
    else:
        history.rollback(place, stream=io.StringIO())

def killed(template, first, stride):
    seen, kills = set(), 0
    for step in range(0, 10_000, stride):
        folder = Path(tempfile.mkdtemp(dir=template.parent))
        shutil.copytree(template, folder, symlinks=True, dirs_exist_ok=True)
        place = Place(folder / "default")
        code = child(lambda: act(first, place), kill_at=step)
        assert code in (0, 9), code
        seen.add(bundle.load(place.default).manifest.name)  # always a whole bundle
        assert child(lambda: act("promote", place)) == 0, step
        assert bundle.load(place.default).manifest.name == "other"
        served = place.ledger.served()
        assert served[-1] == place.current(), (step, served)
        assert child(lambda: act("rollback", place)) == 0, step
        bundle.load(place.default)
        stray = [path.name for path in folder.iterdir() if path.name not in os.listdir(template)]
        assert set(stray) <= {"promoted", "promotions.jsonl", ".promotion.lock"}, stray
        assert not [name for name in os.listdir(place.copies) if name.startswith(".")]
        shutil.rmtree(folder)
        if code == 0:
            break
        kills += 1
    return {"kills": kills, "seen": sorted(seen)}

for line in sys.stdin:
    template, first, stride = json.loads(line)
    print(json.dumps(killed(Path(template), first, stride)), flush=True)
"""


@pytest.fixture(scope="module")
def killed() -> Iterator[Killed]:
    """Kills a verb before its first change, and before every `stride`-th after that, until it ends by itself.

    In forks of one process for all tests: to import what it runs takes longer than most of them.
    """
    command = [sys.executable, "-W", "ignore", "-c", KILLED]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def killed(template: Path, verb: str, *, stride: int) -> dict[str, Any]:
            assert process.stdin is not None and process.stdout is not None
            print(json.dumps([str(template), verb, stride]), file=process.stdin, flush=True)
            told = process.stdout.readline()
            assert told, "it ended; its last words are on stderr"
            return dict(json.loads(told))

        yield killed


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow), 17])
def test_promotion_in_place_of_a_folder_killed_at_any_step(artifacts: Path, killed: Killed, stride: int) -> None:
    (artifacts / "tiny").rename(artifacts / "default")
    told = killed(artifacts, "promote", stride=stride)
    assert told["seen"] == ["other", "tiny"]
    assert told["kills"] > 60 // stride


def test_rollback_killed_at_any_step(artifacts: Path, command: Command, killed: Killed) -> None:
    assert command("promote", "tiny") == command("promote", "other", "--margin", "100") == 0
    told = killed(artifacts, "rollback", stride=2)
    assert told["seen"] == ["other", "tiny"]
    assert told["kills"] > 2


def test_rollback_from_a_folder_killed_at_any_step(artifacts: Path, command: Command, killed: Killed) -> None:
    assert command("promote", "tiny") == command("promote", "other", "--margin", "100") == 0
    (artifacts / "default").unlink()
    (artifacts / "tiny").rename(artifacts / "default")
    told = killed(artifacts, "rollback", stride=11)
    assert told["seen"] == ["other", "tiny"]
    assert told["kills"] > 2


AT_ONCE = """
import argparse, json, os, sys, traceback
from training.commands import promote
parser = argparse.ArgumentParser()
promote.add(parser.add_subparsers())

def child(given):
    pid = os.fork()
    if pid == 0:
        options, code = parser.parse_args(given), 1
        try:
            code = options.command(options)
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    return pid

children = [child(given) for given in map(json.loads, sys.argv[1:])]
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""
"""Each command in a process of its own, all of them at once; the worst of their exit codes."""


def started(*commands: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", AT_ONCE, *map(json.dumps, commands)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_promotions_at_once_leave_one_winner_and_a_whole_link(artifacts: Path, corpus: Path) -> None:
    terms = ["--default", str(artifacts / "default"), "--margin", "100", "--corpus", str(corpus)]
    both = started(*(["promote", str(artifacts / name), *terms] for name in ("tiny", "other")))
    said = both.communicate(timeout=PATIENCE)[1]
    assert both.returncode == 0, said
    place = Place(artifacts / "default")
    first, second = place.ledger.entries()
    assert first["incumbent"] is None
    assert second["incumbent"]["fingerprint"] == first["candidate"]["fingerprint"], "the second was held against it"
    assert place.current() == second["copy"] == place.ledger.served()[-1]
    assert bundle.load(place.default).manifest.name == second["candidate"]["name"]


def test_a_waiting_promotion_says_so(artifacts: Path, corpus: Path) -> None:
    place = Place(artifacts / "default")
    with place.held(sys.stderr):
        process = started(
            ["promote", str(artifacts / "tiny"), "--default", str(place.default), "--corpus", str(corpus)]
        )
        assert process.stderr is not None
        assert process.stderr.readline() == f"waiting for another promotion to {place.default} to end\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert not place.ledger.file.exists() and place.current() is None
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert place.current()


class NoExchange:
    """A C library whose kernel can't exchange two names."""

    @staticmethod
    def renameat2(*_: object) -> int:
        return -1


def test_where_names_can_not_be_exchanged(artifacts: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (artifacts / "tiny").rename(artifacts / "default")
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: NoExchange)
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EINVAL)
    assert command("promote", "other", "--margin", "100") == 0
    assert bundle.load(artifacts / "default").manifest.name == "other"
    assert command("rollback") == 0
    assert bundle.load(artifacts / "default").manifest.name == "tiny"
    assert not (artifacts / ".default.aside").exists()
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EACCES)
    shutil.rmtree(artifacts / "promoted")
    (artifacts / "default").unlink()
    shutil.copytree(artifacts / "other", artifacts / "default")
    (artifacts / "promoted" / "x").mkdir(parents=True)
    with pytest.raises(PermissionError):
        Place(artifacts / "default").point("x")
    assert bundle.load(artifacts / "default").manifest.name == "other"


def test_a_folder_left_aside_is_put_back(artifacts: Path) -> None:
    """Between two renames, where names can't be exchanged, a crash leaves nothing at `default`."""
    (artifacts / "tiny").rename(artifacts / ".default.aside")
    place = Place(artifacts / "default")
    with place.held(sys.stderr):
        assert bundle.load(place.default).manifest.name == "tiny"


def test_links_where_there_are_none(artifacts: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refused)
    assert command("promote", "tiny") == 0
    served = bundle.load(artifacts / "default")
    assert served.onnx.stat().st_ino != (artifacts / "tiny" / bundle.ONNX).stat().st_ino


def test_an_unwritable_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "promotions.jsonl").mkdir()
    with pytest.raises(OSError, match=r"promotions\.jsonl"):
        Ledger(tmp_path / "promotions.jsonl").append({"outcome": "refused"})
