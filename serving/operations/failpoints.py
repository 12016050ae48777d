"""Failpoints: named places in the code where a test can kill the server, make it wait or raise an error.

Failpoints do nothing unless an environment variable arms them:
`ISOSPHERE_FAILPOINTS="store.before-commit=kill@3,index.before-manifest=raise:ENOSPC"`. The actions are `kill` (as `kill
-9`), `raise:ERRNO` (an OSError; EIO by default) and `hold:FILE` (wait until that file is gone). With `@n`, the
action runs only when this process reaches the place for the n-th time. Without `@n`, `kill` runs the first time, and
the other actions run every time.
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
    """The environment variable `ISOSPHERE_FAILPOINTS` is malformed. The message quotes the wrong part."""


def reach(name: str) -> None:
    """Run the action that is armed for the failpoint `name`, if any.

    Names have the form `component.place`.
    """
    if act := _armed.get(name):
        act()


def arm(environment: Mapping[str, str]) -> None:
    """Arm the failpoints in the variable `ISOSPHERE_FAILPOINTS` of `environment`. Disarm all other failpoints.

    Raises:
        FailpointsError: a part of the variable is malformed.
    """
    acts = [_act(part.strip()) for part in environment.get(VARIABLE, "").split(",") if part.strip()]
    _armed.clear()
    _armed.update(acts)


def _act(part: str) -> tuple[str, Callable[[], None]]:
    if not (spec := _SPEC.fullmatch(part)):
        raise FailpointsError(
            f"{VARIABLE}: {part!r} is not component.place=kill|raise[:ERRNO]|hold:FILE, with or without @n"
        )
    name, value, turn = spec["name"], spec["value"], int(spec["turn"]) if spec["turn"] else None
    match spec["action"]:
        case "kill" if not value:
            return name, _at(turn or 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
        case "raise" if number := _NUMBERS.get(value or "EIO"):
            return name, _at(turn, lambda: _fail(number, name))
        case "hold" if value:
            return name, _at(turn, lambda: _wait(Path(value)))
    raise FailpointsError(
        f"{VARIABLE}: {part!r}: kill needs no value, raise needs the name of an errno, and hold needs a file"
    )


def _at(turn: int | None, act: Callable[[], None]) -> Callable[[], None]:
    reached = itertools.count(1)  # threads can call next() on a counter without a lock

    def at() -> None:
        if turn in (None, next(reached)):
            act()

    return at


def _fail(number: int, name: str) -> None:
    raise OSError(number, f"{os.strerror(number)} (failpoint {name})")


def _wait(file: Path) -> None:
    while file.exists():
        time.sleep(0.005)
