"""Kills of a promotion or a rollback before one of its changes, and the commands after them."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np

from models.bundle import bundle
from models.bundle.prompts import NO_PROMPTS
from models.runtimes import REFERENCE
from training.evaluation.bootstrap import Comparison
from training.evaluation.vectors import Encode
from training.promotion import checks, history
from training.promotion.engines import Machine
from training.promotion.place import Place
from training.promotion.promote import Terms, promote
from training.promotion.yardsticks import Scored

CHANGES = {"os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "open"}
PLAIN = Machine(graphs=lambda *_: {REFERENCE: None})


class Equal:
    """Yardstick that gives all encoders the same score."""

    metric = sample = "equal"
    named: str | None = None
    limits: Mapping[str, float] = MappingProxyType({"equal": 0.2})

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Scored:
        return Scored(80.0, np.zeros(2))

    def compare(self, a: Scored, b: Scored) -> Comparison:
        return Comparison(0.0, 0.0, 0.0, 0.5)

    def scores(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> dict[str, float]:
        return {"equal": 80.0}


def _one(*_: object, **__: object) -> float:
    """Return a golden cosine without a session, because sessions do not survive a fork."""
    return 1.0


@patch.object(checks, "golden_cosine", new=_one)
@patch.object(history, "golden_cosine", new=_one)
def killed_everywhere(template: Path, verb: str, stride: int, told: Connection) -> None:
    """Send the number of kills of `verb`, and what was served after each.

    It is killed before its first change, and before every `stride`-th change after that, until it ends by itself. Each
    kill uses a copy of `template`, on which the next commands continue.
    """
    seen, kills = set(), 0
    for step in range(0, 10_000, stride):
        folder = Path(tempfile.mkdtemp(dir=template.parent))
        shutil.copytree(template, folder, symlinks=True, dirs_exist_ok=True)
        place = Place(folder / "default")
        code = _child(lambda place=place: _act(verb, place), kill_at=step)  # type: ignore[misc]
        assert code in (0, 9), code
        seen.add(bundle.load(place.default).manifest.name)  # A whole bundle is always served.
        _act("promote", place)
        assert bundle.load(place.default).manifest.name == "other"
        served = place.ledger.served()
        assert served[-1] == place.current(), (step, served)
        _act("rollback", place)
        bundle.load(place.default)
        stray = {path.name for path in folder.iterdir()} - {path.name for path in template.iterdir()}
        assert stray <= {"promoted", "promotions.jsonl", ".promotion.lock"}, stray
        assert not list(place.copies.glob(".*"))
        shutil.rmtree(folder)
        if code == 0:
            break
        kills += 1
    told.send({"kills": kills, "seen": sorted(seen)})


def _act(verb: str, place: Place) -> None:
    if verb == "promote":
        other = place.default.parent / "other"
        decided = promote(other, place, Terms(), Equal, stream=io.StringIO(), machine=PLAIN)
        assert decided.outcome == "promoted"
    else:
        history.rollback(place, stream=io.StringIO())


def _child(work: Callable[[], None], kill_at: int) -> int:
    """Return the exit code of a fork, which is 9 if it reached its change number `kill_at`."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = kill_at

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in CHANGES:
            return
        if event == "open" and not (isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        left -= 1
        if left < 0:
            os._exit(9)

    sys.addaudithook(hook)
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
