"""What of snapshots survives power loss, and a disk that takes bytes and has no room for them when they are synced."""

from __future__ import annotations

import errno
import os

import pytest

from serving.corpora.corpora import Corpora
from serving.corpora.snapshots import Progress, Snapshots
from serving.errors import InsufficientStorage
from tests.serving.corpora.snapshots.kept import ids
from tests.serving.syncing import noted


def test_one_that_was_deleted_does_not_come_back(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    file = snapshots.path("c", snapshots.create("c", Progress()).id)
    steps = noted(monkeypatch)
    snapshots.delete("c", file.name.partition(".")[0])
    assert steps == [("removed", file), ("synced", file.parent)]


def test_a_disk_that_is_full_when_it_syncs_is_no_fault_of_the_snapshot(
    corpora: Corpora, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = snapshots.create("c", Progress())

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InsufficientStorage, match="No space left"):
        snapshots.restore("c", snapshots.path("c", made.id), Progress())
    assert ids(corpora) == ["a", "b", "c"]
