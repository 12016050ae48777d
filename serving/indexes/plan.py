"""Which kinds of index to try for so many vectors, best first; see docs/adr/0019 for the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from serving.indexes.kind import Kind

GROUP = Path("/sys/fs/cgroup")
FEWEST = 10
"""Vectors that an index is built of: with fewer there is no recall@10 to be measured."""
CERTAIN = 1.0
"""A recall target that only exact search reaches: who misses nothing of some queries may miss something of others."""


@dataclass(frozen=True)
class Plan:
    """When to build, and what."""

    least: int = 20_000
    """Vectors, below which exact search serves."""
    dead: float = 0.2
    """Share of the main index that was removed, above which it is built again without it."""
    tail: float = 0.1
    """Vectors added since, as a share of the main index, above which, and above `least`, it is built with them."""
    kinds: Sequence[str] = ("hnsw", "ivf-flat", "ivf-sq8", "ivf-pq")
    """In the order in which they are tried: the first that fits and reaches the target serves."""
    most: Mapping[str, int] = field(default_factory=lambda: {"hnsw": 5_000_000})
    """Vectors, above which building that kind on one thread takes hours."""
    memory: int | None = None
    """Bytes that a build may take; None: half of what is free."""

    def allows(self, kind: str, count: int) -> bool:
        """Whether an index of this kind over so many vectors is one that it would build."""
        return kind in self.kinds and count >= self.least

    def wanted(self, main: int, dead: int, tail: int) -> bool:
        """Whether so many vectors in the main index and in the tail, some of them removed, call for a build."""
        return tail > max(self.least - 1, self.tail * main) or dead > self.dead * main

    def without(self, kind: str) -> Plan:
        """The plan that does not try `kind`."""
        return replace(self, kinds=[name for name in self.kinds if name != kind])

    def outgrown(self, built: int, tail: int) -> bool:
        """Whether a tail of so many vectors is too long to be searched exactly until a build takes it in.

        Where there is no index yet, the first build is as brief as what would be done before it.
        """
        return "hnsw" in self.kinds and tail > (self.least // 2 if built else 3 * self.least // 2)

    def fitting(self, kinds: Mapping[str, Kind], count: int, dim: int) -> list[Kind]:
        """Those of its kinds that `count` vectors can be built with."""
        memory = free_memory() // 2 if self.memory is None else self.memory
        return [
            kinds[name]
            for name in self.kinds
            if kinds[name].memory(count, dim) <= memory and count <= self.most.get(name, count)
        ]


def free_memory(machine: Path = Path("/proc/meminfo"), group: Path = GROUP) -> int:
    """Bytes that this process may still take: what the machine has, or its control group if that is less."""
    lines = dict(line.split(":", 1) for line in machine.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except FileNotFoundError:  # not in a group of its own, or an old kernel
        return available
    if limit == "max":
        return available
    return min(available, int(limit) - int(used) + int(cached["inactive_file"]))
