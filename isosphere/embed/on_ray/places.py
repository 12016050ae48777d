"""Input files and the output folder, on this machine or at URLs that fsspec supports."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, cast

from models.bundle.disk import make_folder, replacing
from models.remotes.base import as_remote_error, secrets, without_user
from models.remotes.filesystem import open_filesystem
from training.data.files import IN_FOLDERS, OPENERS, CorpusError, resolve_files

log = logging.getLogger(__name__)
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(//|:)", re.IGNORECASE)
MAGIC = re.compile(r"[*?\[]")


class Url:
    """A file at a URL, with the methods of `Path` that the readers use."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __str__(self) -> str:
        return without_user(self._url)

    @property
    def suffix(self) -> str:
        return PurePosixPath(self._url).suffix

    def with_suffix(self, suffix: str) -> Url:
        return Url(self._url.removesuffix(self.suffix) + suffix)

    def open(self, mode: Literal["rb"], /) -> IO[bytes]:
        with _opened(self._url) as (fs, path):
            return cast(IO[bytes], fs.open(path, mode))

    def state(self) -> list[Any]:
        """Return the URL, the size, and a value that changes with the content, such as an ETag."""
        with _opened(self._url) as (fs, path):
            return [str(self), fs.size(path), str(fs.ukey(path))]


def is_url(place: str) -> bool:
    """Return whether a place is a URL instead of a path on this machine."""
    return bool(SCHEME.match(place))


def list_files(places: Sequence[str]) -> list[Path | Url]:
    """Return the files at `places`. Each file occurs once.

    A place is a file, a folder or a pattern, given as a path or a URL.

    Raises:
        CorpusError: a URL does not exist, or a folder or a pattern has no files to read.
        RemoteError: a URL does not answer.
        ValueError: the scheme of a URL is unknown, or its driver is not installed.
    """
    found: dict[str, Path | Url] = {}
    for place in places:
        files = _files_at(place) if is_url(place) else resolve_files([place])
        found |= {str(file): file for file in files}
    return list(found.values())


def state(file: Path | Url) -> list[Any]:
    """Return the name of a file, its size, and a value that changes with its content."""
    if isinstance(file, Url):
        return file.state()
    stat = file.stat()
    return [str(file), stat.st_size, stat.st_mtime_ns]


def _files_at(url: str) -> list[Url]:
    magic = MAGIC.search(url)
    base = url[: magic.start()].rpartition("/")[0] if magic else url.rstrip("/")
    with _opened(base) as (fs, root):
        if magic:
            matching = fs.glob(root.rstrip("/") + url.removeprefix(base), detail=True)
            found = [path for path, facts in matching.items() if facts["type"] != "directory"]
        elif fs.isdir(root):
            inside = fs.find(root)
            found = [path for path in inside if _is_read(path.removeprefix(root))]
            if found and (others := sorted({*inside} - {*found})):
                name = PurePosixPath(others[0]).name
                log.warning("%s: %d files are left out, such as %s", without_user(url), len(others), name)
        else:
            found = [root] if fs.exists(root) else []
    if not found:
        raise CorpusError(f"{without_user(url)}: no such file, and no folder with files of {', '.join(IN_FOLDERS)}")
    return [Url(base + path.removeprefix(root)) for path in sorted(found)]


def _is_read(path: str) -> bool:
    """Return whether a file of an input folder is read.

    Its suffix must be in `IN_FOLDERS`. A suffix of compression in `OPENERS` may follow. Files and folders whose names
    begin with `.` or `_` are skipped.
    """
    name = PurePosixPath(path)
    kind = (name.with_suffix("") if name.suffix.lower() in OPENERS else name).suffix.lower()
    return kind in IN_FOLDERS and not any(part.startswith((".", "_")) for part in name.parts)


@contextmanager
def _opened(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a URL, and the path on it.

    If the `with` block raises an error, convert it to an error with a one-line message.
    """
    fs, path = open_filesystem(url)
    with as_remote_error(without_user(url), secrets(url)):
        yield fs, path


class Folder:
    """A folder whose files are written atomically."""

    def __init__(self, place: str) -> None:
        self._url = place.rstrip("/")
        self.path = None if is_url(place) else Path(place)

    def __str__(self) -> str:
        return without_user(self._url)

    def names(self) -> set[str]:
        """Return the names of the folder's files, except hidden files.

        The result is empty if the folder does not exist.
        """
        if self.path:
            found = [one.name for one in self.path.iterdir()] if self.path.exists() else []
        else:
            with _opened(self._url) as (fs, root):
                fs.invalidate_cache()
                found = [PurePosixPath(one).name for one in fs.ls(root, detail=False)] if fs.exists(root) else []
        return {name for name in found if not name.startswith(".")}

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        if self.path:
            return (self.path / name).read_bytes()
        with _opened(self._url) as (fs, root):
            return cast(bytes, fs.cat_file(f"{root}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""
        if self.path:
            make_folder(self.path)
            with replacing(self.path / name) as beside:
                beside.write_bytes(content)
            return
        with _opened(self._url) as (fs, root):
            fs.makedirs(root, exist_ok=True)
            beside_it = f"{root}/.{name}.part"
            fs.pipe_file(beside_it, content)
            # The old file is removed first, because some file systems can't rename to an existing file.
            if fs.exists(f"{root}/{name}"):
                fs.rm_file(f"{root}/{name}")
            fs.mv(beside_it, f"{root}/{name}")

    def remove(self, name: str) -> None:
        """Remove a file."""
        if self.path:
            (self.path / name).unlink()
            return
        with _opened(self._url) as (fs, root):
            fs.rm_file(f"{root}/{name}")
