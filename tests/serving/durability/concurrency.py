"""Concurrency: eight writers and eight readers on one corpus."""

from __future__ import annotations

from pathlib import Path

from tests.serving.durability.bounds import Bound, Outcome, nothing_wrong
from tests.serving.durability.server import home
from tests.serving.durability.traffic import Traffic

WRITERS = READERS = 8


def concurrency(folder: Path, seconds: int) -> Outcome:
    """Run readers and writers for some seconds.

    No request is refused, and every read shows a prefix of each writer's writes.
    """
    traffic = Traffic.of(WRITERS)
    with home(folder).server() as server:
        traffic.check(server)
        traffic.run(server, READERS, seconds)
        traffic.check(server)
        traffic.hear(server)
        locked = "locked" in server.said() or any("locked" in refusal for refusal in traffic.refusals)
    refused = sum(n for answer, n in traffic.statuses.items() if answer[-3:] not in ("200", "204"))
    bounds = [
        Bound("writes", traffic.statuses["write 200"], 10 * seconds, at_least=True),
        Bound("reads", traffic.statuses["read 200"], 10 * seconds, at_least=True),
        Bound("answers other than 200, 204", refused, 0),
        Bound("`database is locked` seen", int(locked), 0),
        *nothing_wrong(traffic.verdict),
    ]
    return Outcome(bounds, traffic.report())
