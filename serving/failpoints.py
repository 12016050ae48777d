"""Named places where a test may let the server die, fail or wait. Nothing happens there unless the environment says so.

For tests: `ISOSPHERE_FAILPOINTS="store.before-commit=kill@3,index.before-manifest=raise:ENOSPC"`. The actions: `kill`
(as `kill -9` does), `raise:ERRNO` (an OSError; EIO if it names none), `hold:FILE` (wait until that file is gone). `@n`
is the n-th time that this process reaches the place, and no other; without it `kill` takes the first, the others all.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

VARIABLE = "ISOSPHERE_FAILPOINTS"
_SPEC = re.compile(r"(?P<name>[a-z-]+\.[a-z-]+)=(?P<action>kill|raise|hold)(:(?P<value>[^@]+))?(@(?P<turn>[1-9]\d*))?")

_armed: dict[str, Callable[[], None]] = {}
_NUMBERS = {name: number for number, name in errno.errorcode.items()}


class FailpointsError(ValueError):
    """The variable does not say what it should; the message quotes the part."""


def reach(name: str) -> None:
    """A place, `room.place`, that matters to durability."""
    if act := _armed.get(name):
        act()


def arm(environment: Mapping[str, str]) -> None:
    """Let happen from now on what the variable says, and nothing else.

    Raises:
        FailpointsError: a part of it is none.
    """
    acts = [_act(part.strip()) for part in environment.get(VARIABLE, "").split(",") if part.strip()]
    _armed.clear()
    _armed.update(acts)


def _act(part: str) -> tuple[str, Callable[[], None]]:
    if not (spec := _SPEC.fullmatch(part)):
        raise FailpointsError(f"{VARIABLE}: {part!r} is not room.place=kill|raise[:ERRNO]|hold:FILE, maybe with @n")
    name, value, turn = spec["name"], spec["value"], int(spec["turn"]) if spec["turn"] else None
    match spec["action"]:
        case "kill" if not value:
            return name, _at(turn or 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
        case "raise" if number := _NUMBERS.get(value or "EIO"):
            return name, _at(turn, lambda: _fail(number, name))
        case "hold" if value:
            return name, _at(turn, lambda: _wait(Path(value)))
    raise FailpointsError(f"{VARIABLE}: {part!r}: kill takes nothing, raise the name of an errno, hold a file")


def _at(turn: int | None, act: Callable[[], None]) -> Callable[[], None]:
    reached = itertools.count(1)  # its next() is one step to every thread

    def at() -> None:
        if turn in (None, next(reached)):
            act()

    return at


def _fail(number: int, name: str) -> None:
    raise OSError(number, f"{os.strerror(number)} (failpoint {name})")


def _wait(file: Path) -> None:
    while file.exists():
        time.sleep(0.005)
