"""Number of CPUs that this process may use. In a container, this number can be lower than that of the host's CPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def available(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the number of usable CPUs.

    The number is the lowest of several limits, but at least 1. The limits are the number of CPUs in the affinity mask,
    and the quotas of all cgroups that contain the process. Quotas are rounded down.
    """
    affinity = float(len(os.sched_getaffinity(0)))
    return max(1, math.floor(min([affinity, *_quotas(root, membership)])))


def _quotas(root: Path, membership: Path) -> Iterator[float]:
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from filter(None, map(_v2, _enclosing(root, path)))
        elif "cpu" in controllers.split(","):
            for mount in (root / "cpu", root / "cpu,cpuacct"):
                yield from filter(None, map(_v1, _enclosing(mount, path)))


def _enclosing(mount: Path, path: str) -> list[Path]:
    group = mount / path.lstrip("/")
    return [group, *(parent for parent in group.parents if parent.is_relative_to(mount))]


def _v2(group: Path) -> float | None:
    file = group / "cpu.max"
    if not file.exists():
        return None
    quota, period = file.read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _v1(group: Path) -> float | None:
    file = group / "cpu.cfs_quota_us"
    if not file.exists() or (quota := int(file.read_text())) <= 0:
        return None
    return quota / int((group / "cpu.cfs_period_us").read_text())
