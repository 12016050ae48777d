"""What the opening benchmark takes for cold is cold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.opening import forget
from benchmarks.processes import read_bytes

SIZE = 1 << 20


def test_what_was_forgotten_is_read_from_disk_once(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_bytes(os.urandom(SIZE))
    forget(tmp_path)
    read = []
    for _ in range(2):
        before = read_bytes(os.getpid())
        assert len(file.read_bytes()) == SIZE
        read.append(read_bytes(os.getpid()) - before)
    if not read[0]:
        pytest.skip("a file system without a disk, or a kernel that does not count its reads")
    assert read[0] >= SIZE > read[1]
