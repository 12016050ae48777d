"""Tests of the atomic replacement of a bundle's folder, also beside other writers and readers and after a kill."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from models.bundle import bundle, disk
from models.bundle.bundle import BundleError
from models.bundle.disk import exchange_names
from models.export import destination


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.fixture
def _names_exchange(tmp_path_factory: pytest.TempPathFactory) -> None:
    one, other = (tmp_path_factory.mktemp(name) for name in ("one", "other"))
    if not exchange_names(one, other):
        pytest.skip("this file system can't exchange two names")


def test_a_failed_write_leaves_the_old_bundle_and_no_debris(copy: Path) -> None:
    before = bundle.load(copy).manifest
    with pytest.raises(RuntimeError), destination.writing(copy) as draft:
        (draft / "half").write_text("written")
        raise RuntimeError
    assert bundle.load(copy).manifest == before
    assert [p.name for p in copy.parent.iterdir()] == ["bundle"]


def _killed_while_writing(folder: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from models.export import destination\n"
        "with destination.writing(Path(sys.argv[1])) as draft:\n"
        "    (draft / 'half').write_text('written'); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(folder)], check=False).returncode == -9


def test_a_process_killed_while_writing_leaves_the_old_bundle_and_its_draft_is_swept(copy: Path) -> None:
    before = bundle.load(copy).manifest
    _killed_while_writing(copy)
    assert bundle.load(copy).manifest == before
    assert len(list(copy.parent.iterdir())) == 2
    with pytest.raises(RuntimeError), destination.writing(copy):
        raise RuntimeError
    assert [p.name for p in copy.parent.iterdir()] == ["bundle"]


def test_two_writers_at_once_do_not_sweep_each_other(copy: Path) -> None:
    with pytest.raises(RuntimeError), destination.writing(copy) as first:
        with pytest.raises(KeyError), destination.writing(copy) as second:
            assert first.is_dir() and second.is_dir()
            raise KeyError
        assert first.is_dir()
        raise RuntimeError


@pytest.mark.usefixtures("_names_exchange")
def test_the_new_bundle_takes_the_old_one_s_place_in_one_step(
    copy: Path, other_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("there is a moment without the folder"))
    with destination.writing(copy) as draft:
        shutil.copytree(other_bundle, draft, dirs_exist_ok=True)
    assert bundle.load(copy).manifest == bundle.load(other_bundle).manifest
    assert [p.name for p in copy.parent.iterdir()] == ["bundle"]


def test_a_swap_cut_in_two_is_mended_by_the_next_write(
    copy: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt a swap on a system that can't exchange names. The next write repairs it."""
    monkeypatch.setattr("models.bundle.disk.exchange_names", lambda *_: False)
    rename = Path.rename

    def power_fails(self: Path, target: Path) -> Path:
        if target == copy:
            raise OSError("power")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", power_fails)
    with pytest.raises(OSError, match="power"), destination.writing(copy) as draft:
        shutil.copytree(tiny_bundle, draft, dirs_exist_ok=True)
    assert not copy.exists()
    monkeypatch.undo()
    with pytest.raises(RuntimeError), destination.writing(copy):
        raise RuntimeError
    assert bundle.load(copy).manifest == bundle.load(tiny_bundle).manifest


@pytest.mark.parametrize("manifest", [None, "{}", '{"name": "my web app", "icons": []}'])
def test_a_folder_that_is_not_a_bundle_is_left_alone(tmp_path: Path, manifest: str | None) -> None:
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter1.tex").write_text("years of work")
    if manifest:
        (precious / "manifest.json").write_text(manifest)
    with pytest.raises(BundleError, match="not a bundle"), destination.writing(precious):
        pass
    assert (precious / "chapter1.tex").read_text() == "years of work"


def test_a_file_of_ones_own_inside_a_bundle_is_not_deleted(copy: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    with pytest.raises(BundleError, match=r"notes\.txt: not a file of the bundle"), destination.writing(copy):
        pass
    assert (copy / "notes.txt").read_text() == "mine"


def test_nothing_is_written_inside_a_bundle_or_where_no_folder_can_be(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy)
    for inside in (copy / "new" / "folder", Path("new")):
        with pytest.raises(BundleError, match="is inside the bundle"):
            destination.refuse_foreign(inside)
    destination.refuse_foreign(Path("../new"))
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="file is not a folder"):
        destination.refuse_foreign(tmp_path / "file" / "new")
    (tmp_path / "manifest.json").write_text('{"name": "my web app", "icons": []}')
    destination.refuse_foreign(tmp_path / "new")


def test_a_neighbour_with_a_likely_name_is_left_alone(copy: Path, tiny_bundle: Path) -> None:
    neighbour = copy.with_name("bundle.old")
    neighbour.mkdir()
    (neighbour / "mine").write_text("kept")
    with destination.writing(copy) as draft:
        shutil.copytree(tiny_bundle, draft, dirs_exist_ok=True)
    assert (neighbour / "mine").read_text() == "kept"
    bundle.load(copy)


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_text("a file")
    with pytest.raises(BundleError, match="not a bundle"), destination.writing(tmp_path / "bundle"):
        pass
    assert (tmp_path / "bundle").read_text() == "a file"


def test_another_user_can_read_what_was_written(tiny_bundle: Path) -> None:
    assert all(p.stat().st_mode & 0o044 == 0o044 for p in [tiny_bundle, *tiny_bundle.rglob("*")])


@pytest.mark.usefixtures("_names_exchange")
def test_first_writers_of_one_folder_all_end_well_and_one_of_them_stays(tmp_path: Path) -> None:
    writers = range(4)
    start = Barrier(len(writers), timeout=30)
    for turn in range(50):
        folder = tmp_path / str(turn)

        def write(writer: int, folder: Path = folder) -> None:
            start.wait()
            with disk.replacing_folder(folder) as mine:
                (mine / "whose").write_text(str(writer))

        with ThreadPoolExecutor(len(writers)) as pool:
            list(pool.map(write, writers))
        assert [path.name for path in folder.iterdir()] == ["whose"] and int((folder / "whose").read_text()) in writers
    assert len(list(tmp_path.iterdir())) == turn + 1
