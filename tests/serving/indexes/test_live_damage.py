"""Builds that fail, files that are damaged, indexes of another history: what serves is right all the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from serving.indexes import saved
from tests.serving.indexes.following import Turns, check, opened, put
from tests.serving.indexes.sources import DictSource

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
        put(index, source, 2500)
        builder.build()
        assert "what is there goes on serving" in caplog.text
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
        put(index, source, 2500)
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
        put(index, source, 2500)
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
        put(index, source, 2500)
        builder.build()
    change(source)
    with closing(opened(source, builder, tmp_path)) as again:
        assert (again.report.kind, len(again)) == ("exact", len(source.held))
