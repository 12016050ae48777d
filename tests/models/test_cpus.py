"""Tests of the number of CPUs that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from models import cpus


def cgroup(root: Path, membership: str, **files: str) -> tuple[Path, Path]:
    for path, text in files.items():
        file = root / path.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    root.mkdir(parents=True, exist_ok=True)
    (root / "membership").write_text(membership)
    return root, root / "membership"


def test_cpus_from_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    v2 = cgroup(tmp_path / "v2", "0::/a/b\n", a__cpu_dot_max="250000 100000\n", a__b__cpu_dot_max="max 100000\n")
    assert cpus.available(*v2) == 2
    quota, period = "cpu__a__cpu_dot_cfs_quota_us", "cpu__a__cpu_dot_cfs_period_us"
    v1 = cgroup(tmp_path / "v1", "4:cpu,cpuacct:/a\n2:memory:/a\n", **{quota: "50000", period: "100000"})
    assert cpus.available(*v1) == 1
    unlimited = cgroup(tmp_path / "no", "4:cpu:/a\n0::/\n", **{quota: "-1", period: "100000"})
    assert cpus.available(*unlimited) == 16
    assert cpus.available(tmp_path, tmp_path / "absent") == 16
