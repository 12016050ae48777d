"""Snapshots made and restored during writes. Each equals the corpus at one moment."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from tests.serving.durability.history import State, Verdict, Writes, sort_out
from tests.serving.durability.jobs import ended, started
from tests.serving.durability.traffic import CORPUS, listed

COPY = "copy"
"""Corpus that snapshots are restored to."""
KEPT = 4
"""Number of snapshots kept."""
Moment = Mapping[str, Sequence[State]]
"""Possible states of each writer in a snapshot."""


@dataclass
class Copies:
    """Acknowledged snapshots, with those that the copy may contain."""

    writers: Sequence[Writes]
    made: dict[str, Moment] = field(default_factory=dict)
    restored: list[str] = field(default_factory=list)
    """Ids of the last acknowledged restored snapshot, if any, and of those requested since."""
    there: bool = False
    """True once a restore was acknowledged. From then on the copy always exists."""
    seed: int = 0

    def make(self, client: httpx.Client) -> None:
        """Make one more snapshot, and delete the oldest."""
        marks = [writes.acknowledged for writes in self.writers]
        job = ended(client, started(client.post(f"/corpora/{CORPUS}/snapshots")))
        moment = {writes.name: list(writes.possible(mark)) for writes, mark in zip(self.writers, marks, strict=True)}
        self.made[job["result"]["id"]] = moment
        while len(self.made) > KEPT:
            oldest = next(one for one in self.made if one not in self.restored)
            del self.made[oldest]
            client.delete(f"/corpora/{CORPUS}/snapshots/{oldest}").raise_for_status()

    def restore(self, client: httpx.Client) -> None:
        """Restore one snapshot over the previous copy."""
        if self.made:
            self.seed += 1
            chosen = random.Random(self.seed).choice(list(self.made))
            self.restored.append(chosen)
            asked = {"snapshot": chosen, "of": CORPUS}
            ended(client, started(client.put(f"/corpora/{COPY}/restore", json=asked)))
            self.restored, self.there = [chosen], True

    def check(self, client: httpx.Client, verdict: Verdict) -> None:
        """Check that acknowledged snapshots exist, and that the copy is complete and one of the possible ones."""
        there = client.get(f"/corpora/{CORPUS}/snapshots").raise_for_status().json()["snapshots"]
        for lost in self.made.keys() - {one["id"] for one in there}:
            verdict.note("lost", f"snapshot {lost}")
        names = {corpus["name"] for corpus in client.get("/corpora").json()["corpora"]}
        if COPY not in names:
            if self.there:
                verdict.note("lost", f"corpus {COPY}")
            return
        found = sort_out(listed(client, COPY), verdict, COPY)
        verdict.reads += 1
        if not any(self._is(self.made[one], found) for one in self.restored):
            verdict.note("in part", f"{COPY} is none of {self.restored}: {str(found)[:300]}")

    def _is(self, moment: Moment, found: Mapping[str, State]) -> bool:
        return all(found.get(writer, {}) in states for writer, states in moment.items())
