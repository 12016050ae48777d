"""Tests of unpacking archives, and of archives that are refused."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.datasets.samples import contents, tar
from training.evaluation.datasets.catalogue import copied, untarred
from training.evaluation.pairs import DataError

PARTS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8).filter("lock".__ne__)


@given(top=st.lists(PARTS, max_size=3), names=st.sets(PARTS, min_size=1, max_size=4))
def test_folders_are_found_wherever_they_lie(
    top: list[str], names: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("archive")
    members = {"/".join([*top, folder, name]): name.encode() for folder in ("A", "B/deep") for name in names}
    members |= {f"unwanted/{name}": b"" for name in names} | {"/".join([*top, "A", "C", "x"]): b""}
    untarred("here", ["A", "B/deep"])(tar(base / "some.tar", members), base / "out")
    expected = {f"here/{folder}/{name}": name.encode() for folder in ("A", "B/deep") for name in names}
    assert contents(base / "out") == expected


@pytest.mark.parametrize("name", ["../evil", "data/A/../../../evil", "data/../../A/evil"])
def test_an_archive_that_points_out_of_itself_is_refused(tmp_path: Path, name: str) -> None:
    archive = tar(tmp_path / "some.tar", {"data/A/good": b"good", name: b"evil"})
    with pytest.raises(DataError, match=r"some\.tar: refused, .*outside the destination"):
        untarred("here", ["A"])(archive, tmp_path / "out" / "deep")
    assert contents(tmp_path).keys() == {"some.tar"}


def test_links_are_left_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "some.tar", "w") as archive:
        link = tarfile.TarInfo("A/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("A/file"))
    untarred("here", ["A"])(tmp_path / "some.tar", tmp_path / "out")
    assert contents(tmp_path / "out") == {"here/A/file": b""}


@pytest.mark.parametrize("members", [{"data/B/x": b""}, {"data/A/x": b"", "elsewhere/B/x": b""}])
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, members: dict[str, bytes]) -> None:
    archive = tar(tmp_path / "some.tar", members)
    with pytest.raises(DataError, match=r"some\.tar: contains no folder (A|data/B)$"):
        untarred("here", ["A", "B"])(archive, tmp_path / "out")


def test_half_a_file_is_damaged(tmp_path: Path) -> None:
    whole = tar(tmp_path / "whole.tar", {"A/x": bytes(range(256)) * 100}).read_bytes()
    (tmp_path / "half.tar").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "half.gz").write_bytes(gzip.compress(bytes(range(256)) * 100)[:-20])
    (tmp_path / "no.gz").write_bytes(b"plain")
    for file, unpack in (
        ("half.tar", untarred("h", ["A"])),
        ("half.gz", copied("h", gzip.open)),
        ("no.gz", copied("h", gzip.open)),
    ):
        with pytest.raises(DataError, match=rf"{file}: damaged, \w"):
            unpack(tmp_path / file, tmp_path / "out")


def test_a_file_that_is_gone_is_named_itself(tmp_path: Path) -> None:
    for unpack in (copied("x"), copied("x", gzip.open)):
        with pytest.raises(FileNotFoundError) as caught:
            unpack(tmp_path / "gone", tmp_path / "out")
        assert caught.value.filename == str(tmp_path / "gone")
