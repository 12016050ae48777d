"""Power loss during writes: unsynced data are lost, and acknowledged data are not."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from tests.serving.durability.bounds import Bound, Outcome, nothing_wrong
from tests.serving.durability.chores import Chores
from tests.serving.durability.fakes import FIRST, OPTIONS, SECOND
from tests.serving.durability.kills import LARGE
from tests.serving.durability.server import BrokenError, NotReadyError, home
from tests.serving.durability.shim import LOSSES, Disk, compiled
from tests.serving.durability.traffic import Traffic

WRITERS = 3


def power(folder: Path, times: int) -> Outcome:
    """Cut the power repeatedly at random moments, with each kind of loss in turn.

    Raises:
        NoCompilerError: the C shim can't be compiled.
    """
    rng = random.Random(times)
    at = home(folder, module="tests.serving.durability.fakes", options=(*OPTIONS, "--exact-below", str(LARGE)))
    disk = Disk(compiled(folder), at.data, folder / "shadow")
    at.environment = disk.environment
    traffic, lost = Traffic.of(WRITERS), Counter[str]()
    chores = Chores.of(traffic, (FIRST, SECOND))
    disk.settle()
    for time in range(times + 1):
        loss = LOSSES[time % len(LOSSES)]
        try:
            with at.server() as server:
                traffic.check(server)
                chores.check(server)
                if time == times:
                    break
                with chores.beside(server):
                    traffic.run(server, 1, rng.uniform(0.05, 0.8))
                    server.kill()
                traffic.hear(server)
        except (NotReadyError, BrokenError) as error:
            traffic.verdict.note("broken", f"after {lost}: {error}")
            break
        disk.lose(loss, rng)
        lost[loss] += 1
    bounds = [Bound("times the power went", sum(lost.values()), times, at_least=True), *nothing_wrong(traffic.verdict)]
    details = {
        "lost each time": dict(lost),
        **traffic.report(),
        "chores": dict(chores.done),
    }
    return Outcome(bounds, details)
