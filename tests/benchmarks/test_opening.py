"""Test of the opening benchmark: files that it treats as not cached are not cached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.serving.opening import forget
from benchmarks.serving.processes import read_bytes

SIZE = 1 << 20


def test_what_was_forgotten_is_read_from_disk_once(tmp_path: Path) -> None:
    with (tmp_path / "control").open("wb+") as control:
        control.write(os.urandom(SIZE))
        control.flush()
        os.fsync(control.fileno())
        os.posix_fadvise(control.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if not read_from_disk(tmp_path / "control"):
        pytest.skip("a file system without a disk, or a kernel that does not count its reads")
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_bytes(os.urandom(SIZE))
    assert read_from_disk(file) == 0
    forget(tmp_path)
    assert read_from_disk(file) >= SIZE
    assert read_from_disk(file) == 0


def read_from_disk(file: Path) -> int:
    before = read_bytes(os.getpid())
    assert len(file.read_bytes()) == SIZE
    return read_bytes(os.getpid()) - before
