"""Tests of state files: complete, with the folder's usual permissions, and without leftovers."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import torch

from training.machine.state_file import read_header, save_state


def test_it_can_be_read_by_whom_the_umask_lets_and_leaves_nothing(tmp_path: Path) -> None:
    file, left = tmp_path / "state.safetensors", tmp_path / ".tmpA1b2C3"
    left.write_bytes(b"half of what a killed process wrote")
    before = os.umask(0o027)
    try:
        save_state(file, {"weight": torch.zeros(3)}, {"step": 1})
    finally:
        os.umask(before)
    assert read_header(file) == {"step": 1}
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]
