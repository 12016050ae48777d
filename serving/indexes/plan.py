"""Choice of the kinds of index to try for a number of vectors, best first. Measurements are in docs/adr/0019."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from serving.indexes.kind import Kind
from serving.settings import INDEXED_FROM

GROUP = Path("/sys/fs/cgroup")
FEWEST = 10
"""Minimum vectors of an index. With fewer, recall@10 can't be measured."""
CERTAIN = 1.0
"""A recall target that only exact search reaches. An index without misses for some queries may have misses for
others."""


@dataclass(frozen=True)
class Plan:
    """Conditions of a build, and the kinds that are tried."""

    least: int = INDEXED_FROM
    """Vectors below which exact search serves."""
    dead: float = 0.2
    """Share of removed vectors in the main index above which it is rebuilt without them."""
    tail: float = 0.1
    """Size of the tail, relative to the main index, above which both are rebuilt together, if it also exceeds
    `least`."""
    kinds: Sequence[str] = ("hnsw", "ivf-flat", "ivf-sq8", "ivf-pq")
    """Kinds in the order in which they are tried. The first one that fits and reaches the target serves."""
    most: Mapping[str, int] = field(default_factory=lambda: {"hnsw": 5_000_000})
    """Vectors above which building this kind on one thread takes hours."""
    memory: int | None = None
    """Bytes that a build may take; None means half of the free memory."""

    def allows(self, kind: str, count: int) -> bool:
        """Return whether this plan would build an index of this kind over `count` vectors."""
        return kind in self.kinds and count >= self.least

    def wanted(self, main: int, dead: int, tail: int) -> bool:
        """Return whether a build is due for so many vectors in the main index and the tail, `dead` of them removed."""
        return tail > max(self.least - 1, self.tail * main) or dead > self.dead * main

    def without(self, kind: str) -> Plan:
        return replace(self, kinds=[name for name in self.kinds if name != kind])

    def outgrown(self, built: int, tail: int) -> bool:
        """Return whether a tail is too long for exact search until the next build.

        Without a built index, the first build takes as little time as growing a graph before it would.
        """
        return "hnsw" in self.kinds and tail > (self.least // 2 if built else 3 * self.least // 2)

    def fitting(self, kinds: Mapping[str, Kind], count: int, dim: int) -> list[Kind]:
        """Return the kinds that can be built with `count` vectors."""
        memory = free_memory() // 2 if self.memory is None else self.memory
        return [
            kinds[name]
            for name in self.kinds
            if kinds[name].memory(count, dim) <= memory and count <= self.most.get(name, count)
        ]


def free_memory(machine: Path = Path("/proc/meminfo"), group: Path = GROUP) -> int:
    """Return the bytes that this process may still take, limited by the machine and by its control group."""
    lines = dict(line.split(":", 1) for line in machine.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except FileNotFoundError:  # no control group of its own, or an old kernel
        return available
    if limit == "max":
        return available
    return min(available, int(limit) - int(used) + int(cached["inactive_file"]))
