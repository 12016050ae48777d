"""Durable writes, atomic replacement of files and folders, and one-line messages for disk errors."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError

EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Error numbers that mean a problem of the disk, not of the path that the user gave."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Constants of Linux's renameat2(2)."""
UNABLE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}
"""Error numbers of a kernel or file system that can't exchange two names."""
TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
"""Error numbers which show that another writer used the name first."""
LFS = "a Git LFS pointer, not the file itself: fetch the file with `git lfs pull`"


def fsync(path: Path) -> None:
    """Flush the content of a file, or the list of names in a folder, to disk. Flushed data survives power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and flush them to disk, so that they survive power loss.

    Raises:
        OSError: the folder can't be created.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        fsync(made.parent)


def size(path: str | Path) -> int:
    """Return the size in bytes of a file, or of all files below a folder. Paths that do not exist have size 0.

    Raises:
        OSError: the path can't be read.
    """
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            return found.st_size
        with os.scandir(path) as inside:
            return sum(size(one.path) for one in inside)
    return 0


@contextmanager
def replacing(file: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path beside `file`. The `with` block writes the new content to this path.

    The temporary file is created with `mode`, less the bits of the umask.

    If the block succeeds, the temporary file replaces `file`. If `file` is a link, the temporary file replaces the
    link's target. Readers see the old file or the new file, never an incomplete file, even after a kill or power loss.
    Simultaneous writers have different temporary paths. Each writer deletes the temporary files of killed writers.

    Raises:
        OSError: the file can't be written; the message names `file`.
    """
    with naming(file), ExitStack() as holding:
        file = Path(os.path.realpath(file))
        _sweep_drafts(file.parent, f".*.{glob.escape(file.name)}.part", Path.unlink)
        beside = _locked_draft(lambda: _new_part(file, mode), holding)
        try:
            yield beside
            fsync(beside)
            beside.replace(file)
            fsync(file.parent)
        finally:
            beside.unlink(missing_ok=True)


def write_whole(file: Path, text: str) -> None:
    """Replace the text of `file` atomically.

    Raises:
        OSError: the file can't be written; the message names `file`.
    """
    with replacing(file) as beside:
        beside.write_text(text, encoding="utf-8")


def _new_part(file: Path, mode: int) -> Path:
    part = file.with_name(f".{uuid4().hex[:8]}.{file.name}.part")
    part.touch(mode, exist_ok=False)
    return part


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, the draft, beside `folder`. The `with` block writes the new content to the draft.

    If the block succeeds, the draft replaces `folder`. Otherwise the draft is deleted. On file systems that can
    exchange two names, readers of `folder` always see the old folder or the new folder, even after a kill.

    On other file systems, `folder` does not exist for a moment between two renames. If the process crashes in this
    moment, the old folder still exists under a hidden name, and `restore_folder` renames it back. If several writers
    run at the same time, the last writer wins. The next writer deletes the drafts of killed writers.
    """
    prefix = f".{folder.name}.draft-bundle-"
    _sweep_drafts(folder.parent, f"{glob.escape(prefix)}*", partial(shutil.rmtree, ignore_errors=True))
    with ExitStack() as holding:
        draft = _locked_draft(lambda: Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent)), holding)
        try:
            yield draft
            for path in (*draft.rglob("*"), draft):
                # The draft is readable by its owner only, but a server may run as another user.
                path.chmod(0o755 if path.is_dir() else 0o644)
                fsync(path)
            _swap(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def restore_folder(folder: Path) -> None:
    """Repair the state of `folder` after a crash.

    A crash of `replacing_folder` can leave the old folder under a hidden name. If `folder` is missing, rename the old
    folder back to `folder`. Otherwise delete the old folder.
    """
    previous = _previous(folder)
    if previous.exists() and not folder.exists():
        previous.rename(folder)
    shutil.rmtree(previous, ignore_errors=True)


def _locked_draft(create: Callable[[], Path], holding: ExitStack) -> Path:
    """Create a temporary file or folder, the draft, and lock it until `holding` is closed.

    The lock prevents `_sweep_drafts` from deleting the draft.
    """
    while True:
        draft = create()
        with suppress(BlockingIOError, FileNotFoundError):  # Another writer has locked or deleted the draft.
            holding.enter_context(locked_exclusively(draft))
            if draft.exists():
                return draft


def _sweep_drafts(folder: Path, pattern: str, delete: Callable[[Path], object]) -> None:
    """Delete the drafts in `folder` that match `pattern`, except locked ones, whose writers are still running.

    The writers of the deleted drafts were killed. Errors are ignored, because leftover drafts do no harm.
    """
    for draft in folder.glob(pattern):
        with suppress(OSError), locked_exclusively(draft):
            delete(draft)


def _swap(draft: Path, folder: Path) -> None:
    """Rename the draft to `folder`. If `folder` exists, draft and `folder` exchange their names.

    If the system can't exchange names, the old `folder` is first renamed to a hidden name, and deleted at the end.
    """
    previous = _previous(folder)
    if not _took_free_name(draft, folder) and not exchange_names(draft, folder):
        folder.rename(previous)
        draft.rename(folder)
    fsync(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _took_free_name(draft: Path, folder: Path) -> bool:
    """Rename the draft to `folder` if this name is free, and return whether it was free.

    Another writer may take the name after the check. Then the draft is not renamed, and the result is False.
    """
    try:
        if not folder.exists():
            draft.rename(folder)
            return True
    except OSError as error:
        if error.errno not in TAKEN:
            raise
    return False


def _previous(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous-bundle")


@contextmanager
def locked_exclusively(path: Path) -> Iterator[None]:
    """Lock a file or folder exclusively until the `with` block ends.

    Raises:
        BlockingIOError: the file or folder is already locked.
    """
    # On NFS, an exclusive lock needs a file that is open for writing. A folder can't be opened for writing.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def exchange_names(one: Path, other: Path) -> bool:
    """Exchange two names atomically, and return True. If the system can't do this, change nothing and return False.

    Raises:
        OSError: the exchange failed; the message names `other`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    swap = getattr(libc, "renameat2", None)
    if swap is None:
        return False
    if swap(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    if (number := ctypes.get_errno()) not in UNABLE:
        raise OSError(number, os.strerror(number), str(other))
    return False


def lfs_pointer(file: Path) -> bool:
    """Return whether the file is a Git LFS pointer instead of the real content.

    A clone without LFS contains such pointers.
    """
    with file.open("rb") as stream:
        return stream.read(42) == b"version https://git-lfs.github.com/spec/v1"


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Add the name of `file` to an `OSError` that the `with` block raises.

    Otherwise the error for a full disk would name no file. safetensors reports a full disk by a `SafetensorError`, so
    this error becomes an `OSError`.
    """
    try:
        yield
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(file)) from error
    except OSError as error:
        error.filename, error.filename2 = str(file), None
        raise


def error_line_and_status(error: OSError) -> tuple[str, int]:
    """Return the error message and exit code of a command that failed with `error`.

    The message is one line and names the file, if its name is known. The exit code is 1 if the disk is full or failed,
    and 2 for all other errors, such as a path that can't be used.
    """
    reason = error.strerror or "".join(map(str, error.args))  # Errors of libraries may have no number.
    line = f"{error.filename}: {reason}" if error.filename else str(error)
    return line, 1 if error.errno in EXHAUSTED else 2
