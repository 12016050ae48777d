"""Snapshots: whole, or refused; nothing in one of them decides where anything is written."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from serving.corpora import snapshots as of_snapshots
from serving.corpora.corpora import Corpora
from serving.corpora.snapshots import SUFFIX, Progress, Snapshots
from serving.errors import InsufficientStorage, NotFound, ServiceError, TooLarge, Unhealthy
from tests.serving.corpora.snapshots.kept import content, hits, ids


def test_there_and_back(corpora: Corpora, snapshots: Snapshots) -> None:
    made = snapshots.create("c", Progress())
    assert (made.corpus, made.documents, made.passages, made.fingerprint) == ("c", 3, 3, "f")
    assert snapshots.listing("c") == [made]
    corpora.delete("c", "a")
    corpora.put("c", content("d"))
    snapshots.restore("c", snapshots.path("c", made.id), Progress())
    assert ids(corpora) == ["a", "b", "c"]
    assert hits(corpora, 0) == ["a"]
    assert corpora.corpus("c")[0].description == "kept"
    assert not corpora.verify("c")


def test_they_are_listed_as_they_were_made(corpora: Corpora, snapshots: Snapshots) -> None:
    """Also those of one second, of which the names say nothing."""
    made = []
    for name in "defghi":
        corpora.put("c", content(name))
        made.append(snapshots.create("c", Progress()))
    assert snapshots.listing("c") == made[::-1]


def test_one_that_packs_well_comes_back(
    corpora: Corpora, snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own whatever it packs to; one that is sent if it isn't large."""
    monkeypatch.setattr(of_snapshots, "MAX_RATIO", 1)
    own = snapshots.path("c", snapshots.create("c", Progress()).id)
    sent = Path(shutil.copy(own, tmp_path / "sent"))
    for name, file in (("again", own), ("elsewhere", sent)):
        snapshots.restore(name, file, Progress())
        assert ids(corpora, name) == ["a", "b", "c"]
    monkeypatch.setattr(of_snapshots, "RATIO_EXEMPT_BYTES", 1000)
    snapshots.restore("c", own, Progress())
    with pytest.raises(TooLarge, match="unpacks to more than 1 times"):
        snapshots.restore("c", sent, Progress())


@pytest.mark.parametrize("left_at", ["snapshots.before-restore", "store.before-adopt"])
def test_what_nobody_wants_any_more_changes_nothing(
    corpora: Corpora, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch, left_at: str
) -> None:
    """Behind the last look it is too late."""
    made = snapshots.create("c", Progress())
    corpora.put("c", content("d"))
    progress = Progress()

    def reach(place: str) -> None:
        if place == left_at:
            progress.leave()

    for module in ("serving.corpora.snapshots", "serving.corpora.stores.sqlite"):
        monkeypatch.setattr(f"{module}.reach", reach)
    with pytest.raises(ServiceError, match=r"stopped|was cancelled"):
        snapshots.restore("c", snapshots.path("c", made.id), progress)
    too_late = left_at == "store.before-adopt"
    assert ids(corpora) == (["a", "b", "c"] if too_late else ["a", "b", "c", "d"])
    assert hits(corpora, 2) == ["c"]
    assert not corpora.verify("c")
    assert [one.id for one in snapshots.listing("c")] == [made.id]


@pytest.mark.parametrize("work", ["create", "restore"])
def test_it_stops_in_the_middle_of_a_statement(
    corpora: Corpora, snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Which takes minutes of a large corpus."""
    made = snapshots.create("c", Progress())
    monkeypatch.setattr("serving.corpora.stores.connections.STEPS", 1)
    progress = Progress()
    looks = iter(range(5))
    monkeypatch.setattr(progress, "left", lambda: next(looks, None) is None)
    with pytest.raises(ServiceError, match=r"stopped|interrupted"):
        if work == "create":
            snapshots.create("c", progress)
        else:
            snapshots.restore("c", snapshots.path("c", made.id), progress)
    assert [one.id for one in snapshots.listing("c")] == [made.id]
    assert list((tmp_path / "snapshots" / "c").iterdir()) == [snapshots.path("c", made.id)]
    corpora.put("c", content("d"))
    assert ids(corpora) == ["a", "b", "c", "d"] and not corpora.verify("c")


def test_into_another_name_and_after_the_corpus_is_gone(corpora: Corpora, snapshots: Snapshots) -> None:
    made = snapshots.create("c", Progress())
    snapshots.restore("copy", snapshots.path("c", made.id), Progress())
    assert ids(corpora, "copy") == ids(corpora, "c")
    corpora.put("copy", content("z"))
    assert ids(corpora) == ["a", "b", "c"]
    corpora.drop("c")
    snapshots.restore("c", snapshots.path("c", made.id), Progress())
    assert hits(corpora, 1) == ["b"]


def test_none_is_found_by_a_path(snapshots: Snapshots) -> None:
    made = snapshots.create("c", Progress())
    for id in ("../c/" + made.id, made.id + "/..", "", made.id[:-1], ".."):
        with pytest.raises(NotFound):
            snapshots.path("c", id)
    snapshots.delete("c", made.id)
    assert snapshots.listing("c") == []
    with pytest.raises(NotFound):
        snapshots.delete("c", made.id)


def test_one_that_goes_at_this_very_moment_is_not_there(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    made = snapshots.create("c", Progress())
    snapshots.path("c", made.id).unlink()
    monkeypatch.setattr(Path, "is_file", lambda _: True)  # as whoever looked before saw it
    for work in (snapshots.path, snapshots.opened, snapshots.delete):
        with pytest.raises(NotFound, match="has no snapshot"):
            work("c", made.id)


@pytest.mark.parametrize("work", ["listing", "path", "opened", "delete"])
def test_a_disk_that_fails_is_said(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    made = snapshots.create("c", Progress())

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    for name in ("stat", "open", "unlink"):
        monkeypatch.setattr(Path, name, fails)
    monkeypatch.setattr("serving.corpora.snapshots.zstd.open", fails)
    with pytest.raises(Unhealthy, match="too many open files"):
        getattr(snapshots, work)(*(("c",) if work == "listing" else ("c", made.id)))


def test_what_a_kill_left_is_swept(snapshots: Snapshots, tmp_path: Path) -> None:
    made = snapshots.create("c", Progress())
    folder = tmp_path / "snapshots" / "c"
    for left in (".1-2.sqlite", ".1-2.sqlite-wal", f"{made.id}.tar.zst.part"):
        (folder / left).write_bytes(b"half")
    (tmp_path / "snapshots" / "empty").mkdir()  # of a corpus that was restored into, and has none
    snapshots.sweep()
    assert [path.name for path in folder.iterdir()] == [f"{made.id}.tar.zst"]
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["c"]


def test_one_that_is_damaged_hides_no_other(snapshots: Snapshots, tmp_path: Path) -> None:
    made = snapshots.create("c", Progress())
    (tmp_path / "snapshots" / "c" / f"20200101T000000Z-00000000{SUFFIX}").write_bytes(b"damaged")
    assert snapshots.listing("c") == [made]


@pytest.mark.parametrize("work", ["create", "restore"])
def test_a_full_disk_is_said(
    corpora: Corpora, snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    made = snapshots.path("c", snapshots.create("c", Progress()).id)

    def full(_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(of_snapshots, "reach", full)
    with pytest.raises(InsufficientStorage, match="No space left"):
        snapshots.create("c", Progress()) if work == "create" else snapshots.restore("c", made, Progress())
    assert [path.name for path in (tmp_path / "snapshots" / "c").iterdir()] == [made.name]
    assert ids(corpora) == ["a", "b", "c"]
