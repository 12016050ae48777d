"""Tests of failed builds, damaged files and indexes of another history: answers stay right."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from serving.corpora.indexes import live, saved
from serving.corpora.indexes.building import Builder
from serving.corpora.indexes.live import LiveIndex
from serving.errors import Unhealthy
from tests.serving.corpora.indexes.following import Turns, check, opened, put, take
from tests.serving.corpora.indexes.sources import DictSource
from tests.serving.corpora.indexes.vectors import keys

pytestmark = pytest.mark.usefixtures("approximate")


@pytest.mark.parametrize("place", ["index.before-save", "index.before-manifest", "index.after-manifest"])
def test_a_build_that_fails_leaves_what_there_was(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    source = DictSource()

    def fail(reached: str) -> None:
        if reached == place:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved, "reach", fail)
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 625)
        builder.build()
        assert "the current index stays in use" in caplog.text
        assert "No space left" in caplog.text
        assert list(tmp_path.iterdir()) == []
        assert (index.report.kind, index.report.state) == ("exact", "ready")
        check(index, source)
        put(index, source, 10, seed=1)
        assert not builder.waiting, "it waits before it tries again"
        monkeypatch.setattr(saved, "reach", lambda _: None)
        index.build_now()
        assert index.report.kind == "hnsw"
        check(index, source)


@pytest.mark.parametrize("name", [saved.VECTORS, saved.KEYS, saved.INDEX, saved.MANIFEST])
def test_a_damaged_file_is_named_and_the_index_made_anew(
    builder: Turns, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 625)
        builder.build()
    path = next(tmp_path.iterdir()) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with closing(opened(source, builder, tmp_path)) as again:
        assert str(path) in caplog.text
        assert again.report.kind == "exact"
        assert list(tmp_path.iterdir()) == []
        check(again, source)
        builder.build()
        assert again.report.kind == "hnsw"
        check(again, source)


def test_what_a_crash_left_is_cleared_away(builder: Turns, tmp_path: Path) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 625)
        builder.build()
    (whole,) = tmp_path.iterdir()
    shutil.copytree(whole, tmp_path / "00000002-b", ignore=lambda _, names: {saved.MANIFEST} & {*names})
    with closing(opened(source, builder, tmp_path)) as again:
        assert again.report.kind == "hnsw"
        assert list(tmp_path.iterdir()) == [whole]


@pytest.mark.parametrize(
    "change",
    [
        lambda source: setattr(source, "last", 100),
        lambda source: source.held.pop(77),
        lambda source: source.graves.update([77]),
    ],
    ids=["fewer keys", "a vector less", "a grave more"],
)
def test_an_index_of_another_history_is_made_anew(
    builder: Turns, tmp_path: Path, change: Callable[[DictSource], object]
) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 625)
        builder.build()
    change(source)
    with closing(opened(source, builder, tmp_path)) as again:
        assert (again.report.kind, len(again)) == ("exact", len(source.held))


def test_what_a_newer_one_replaced_is_cleared_away(builder: Turns, tmp_path: Path) -> None:
    """Kill a build between two steps, after which its own files and the replaced files exist."""
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 625)
        builder.build()
        (first,) = tmp_path.iterdir()
        shutil.copytree(first, tmp_path.parent / first.name)
        put(index, source, 525, seed=1)
        builder.build()
        (second,) = tmp_path.iterdir()
    shutil.move(tmp_path.parent / first.name, first)
    with closing(opened(source, builder, tmp_path)) as again:
        assert list(tmp_path.iterdir()) == [second]
        assert again.report.main == 1150
        check(again, source)


@pytest.mark.parametrize("place", ["index.compaction", "index.before-save", "index.before-bury"])
def test_a_build_that_is_told_to_stop_touches_nothing_of_what_follows(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """Restore the corpus while its index is built, so that the folder has another history."""
    source, later = DictSource(), DictSource()
    after: list[LiveIndex] = []

    def restored(reached: str) -> None:
        if reached == place and not after:
            index.close(erase=True)
            source.held, source.graves, source.last = later.held, later.graves, later.last
            after.append(opened(source, Turns(), tmp_path))
            put(after[0], source, 625, seed=8)
            source.take(keys([5, 6]))

    monkeypatch.setattr(live, "reach", restored)
    monkeypatch.setattr(saved, "reach", restored)
    index = opened(source, builder, tmp_path)
    put(index, source, 625)
    take(index, source, [1, 2, 3])
    builder.build()
    assert source.graves == {5, 6}
    take(after[0], source, [5, 6])
    check(after[0], source)
    after[0].close()
    assert "could not be built" not in caplog.text
    assert list(tmp_path.rglob("*")) == []
    with closing(opened(source, builder, tmp_path)) as again:
        check(again, source)


def test_a_build_that_fails_in_its_own_way_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    builder, done = Builder(), threading.Event()

    def fail(_: object) -> None:
        raise Unhealthy("too many open files")

    with closing(builder):
        builder.submit(fail)
        builder.submit(lambda _: done.set())
        assert done.wait(20)
    assert "could not be built" in caplog.text


def test_too_many_open_files_are_not_the_fault_of_an_index(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 625)
        builder.build()

    def no_more(_: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", no_more)
        with pytest.raises(OSError, match="Too many"):
            opened(source, builder, tmp_path)
    with closing(opened(source, builder, tmp_path)) as again:
        assert again.report.kind == "hnsw"


@pytest.mark.parametrize("name", [saved.VECTORS, saved.KEYS, saved.INDEX, saved.MANIFEST])
def test_verification_reads_every_byte(builder: Turns, tmp_path: Path, name: str) -> None:
    source = DictSource()
    with closing(opened(source, builder, tmp_path)) as index:
        put(index, source, 625)
        builder.build()
    assert list(saved.damage(tmp_path)) == []
    path = next(tmp_path.iterdir()) / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    (said,) = saved.damage(tmp_path)
    assert said.startswith(f"{path}: ")
    path.unlink()
    assert len(list(saved.damage(tmp_path))) == (name != saved.MANIFEST)
