"""Record of synced and renamed files, in order, to check what a power loss can destroy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Step = tuple[str, Path]


def noted(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Record from now on which paths are `synced`, `moved` or `removed`. SQLite's own syncs are not recorded."""
    steps: list[Step] = []
    sync, unlink = os.fsync, os.unlink

    def synced(descriptor: int) -> None:
        sync(descriptor)
        steps.append(("synced", Path(f"/proc/self/fd/{descriptor}").readlink()))

    def removed(path: Path) -> None:
        unlink(path)
        steps.append(("removed", path))

    def moving(move: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def moved(path: Path, to: Path) -> None:
            move(path, to)
            steps.append(("moved", path))

        return moved

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "unlink", removed)
    monkeypatch.setattr(os, "rename", moving(os.rename))
    monkeypatch.setattr(os, "replace", moving(os.replace))
    return steps
