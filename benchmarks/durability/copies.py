"""Snapshots that are made while others write, and restored beside: each is the corpus as it was at one moment."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from benchmarks.durability.history import State, Verdict, Writes, sort_out
from benchmarks.durability.jobs import ended, started
from benchmarks.durability.traffic import CORPUS, listed

COPY = "copy"
"""The corpus that snapshots are restored to."""
KEPT = 4
"""Snapshots."""
Moment = Mapping[str, Sequence[State]]
"""What a snapshot may hold of each writer."""


@dataclass
class Copies:
    """Those that were acknowledged, and which of them the copy may hold."""

    writers: Sequence[Writes]
    made: dict[str, Moment] = field(default_factory=dict)
    restored: list[str] = field(default_factory=list)
    """Ids: the last that was acknowledged, if one was, and those that were asked for since."""
    there: bool = False
    """Whether one was acknowledged: from then on there always is a copy."""
    seed: int = 0

    def make(self, client: httpx.Client) -> None:
        """One more; the oldest goes."""
        marks = [writes.acknowledged for writes in self.writers]
        job = ended(client, started(client.post(f"/corpora/{CORPUS}/snapshots")))
        moment = {writes.name: list(writes.possible(mark)) for writes, mark in zip(self.writers, marks, strict=True)}
        self.made[job["result"]["id"]] = moment
        while len(self.made) > KEPT:
            oldest = next(one for one in self.made if one not in self.restored)
            del self.made[oldest]
            client.delete(f"/corpora/{CORPUS}/snapshots/{oldest}").raise_for_status()

    def restore(self, client: httpx.Client) -> None:
        """One of them, in place of the one before."""
        if self.made:
            self.seed += 1
            chosen = random.Random(self.seed).choice(list(self.made))
            self.restored.append(chosen)
            asked = {"snapshot": chosen, "of": CORPUS}
            ended(client, started(client.put(f"/corpora/{COPY}/restore", json=asked)))
            self.restored, self.there = [chosen], True

    def check(self, client: httpx.Client, verdict: Verdict) -> None:
        """Those that were acknowledged are there, and the copy is one of those that it may be, whole."""
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
