from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from safetensors import SafetensorError

from models.bundle.disk import error_line_and_status, locked_exclusively, make_folder, replacing, size, write_whole


def test_what_was_written_beside_takes_the_place(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    for text in ("new", "newer"):
        with replacing(file) as beside:
            beside.write_text(text)
            assert not file.exists() or file.read_text() == "new"
        assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_goes_on_leading_to_what_was_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file, link = tmp_path / "elsewhere" / "file", tmp_path / "link"
    link.symlink_to(file)
    for text in ("new", "newer"):
        write_whole(link, text)
        assert (link.is_symlink(), file.read_text()) == (True, text)


def test_of_two_writers_at_once_neither_has_a_part_of_the_other_s(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with replacing(file) as first, first.open("w") as half:
        half.write("first ")
        with replacing(file) as second:
            second.write_text("second")
        assert file.read_text() == "second"
        half.write("writer")
    assert file.read_text() == "first writer"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    script = (
        "import os, sys; from pathlib import Path; from models.bundle.disk import replacing\n"
        "with replacing(Path(sys.argv[1])) as beside: beside.write_text('half'); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(file)], check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1 and not file.exists()
    with replacing(file) as beside:
        beside.write_text("whole")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError, BlockingIOError])
def test_what_can_not_be_swept_keeps_nobody_from_writing(
    error: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> AbstractContextManager[None]:
        if path == left:
            raise error
        return locked_exclusively(path)

    left, file = tmp_path / ".0.a.txt.part", tmp_path / "a.txt"
    left.write_text("of another user")
    monkeypatch.setattr("models.bundle.disk.locked_exclusively", refused)
    with replacing(file) as beside:
        beside.write_text("text")
    assert file.read_text() == "text" and left.exists()


def test_a_file_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.txt") as beside:
        beside.write_text("text")
    (tmp_path / "b.txt").touch()
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


@pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt])
def test_a_block_that_ends_badly_leaves_the_old_file(tmp_path: Path, end: type[BaseException]) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(end), replacing(file) as beside:
        beside.write_text("half of")
        raise end
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), ("a.txt: No such file or directory", 2)),
        (OSError(errno.ENOSPC, "No space left on device"), ("a.txt: No space left on device", 1)),
        (PermissionError(errno.EACCES, "Permission denied", "a.txt.part"), ("a.txt: Permission denied", 2)),
        (OSError("4 requested and 0 written"), ("a.txt: 4 requested and 0 written", 2)),
        (SafetensorError("I/O error: No space left"), ("a.txt: I/O error: No space left", 1)),
    ],
)
def test_an_error_names_the_file_that_was_to_be(
    tmp_path: Path, error: Exception, expected: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError) as caught, replacing(Path("a.txt")):
        raise error
    assert error_line_and_status(caught.value) == expected


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "no" / "a.txt") as beside:
        beside.write_text("text")
    assert error_line_and_status(caught.value) == (f"{tmp_path}/no/a.txt: No such file or directory", 2)


def test_a_folder_and_those_above_it_are_synced_where_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("models.bundle.disk.fsync", synced.append)
    make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_the_size_of_a_folder_is_that_of_all_its_files(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"1" * 1000)
    (below / "two").write_bytes(b"2" * 24)
    (tmp_path / "elsewhere").write_bytes(b"3" * 5000)
    (below / "link").symlink_to(tmp_path / "elsewhere")
    length = len(str(tmp_path / "elsewhere"))
    assert size(tmp_path / "a") == 1000 + 24 + length, "of a link its own"
    assert size(below / "two") == 24
    assert size(tmp_path / "nowhere") == 0
    with pytest.raises(NotADirectoryError):
        size(tmp_path / "elsewhere" / "below")


def test_a_temporary_file_is_locked_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS, an exclusive lock needs a file that is open for writing."""
    modes, flock = [], fcntl.flock

    def locked(descriptor: int, operation: int) -> None:
        modes.append(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", locked)
    write_whole(tmp_path / "a.txt", "a")
    assert modes == [os.O_RDWR]
