"""From a file as the hub has it to files as the rest reads them."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path, PurePosixPath

from models.disk import naming
from training.evaluation.pairs import DataError

Unpack = Callable[[Path, Path], None]
"""Lays what a fetched file holds into a folder; raises `DataError` where it is damaged."""

BROKEN = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)


def copied(target: str) -> Unpack:
    """The file as it is, at `target`."""

    def unpack(fetched: Path, folder: Path) -> None:
        with fetched.open("rb") as source:
            _write(source, folder / target)

    return unpack


def gunzipped(target: str) -> Unpack:
    """What the file decompresses to, at `target`."""

    def unpack(fetched: Path, folder: Path) -> None:
        with _whole(fetched), gzip.open(fetched) as source:
            _write(source, folder / target)

    return unpack


def untarred(target: str, folders: Sequence[str]) -> Unpack:
    """The files of these folders of an archive, wherever in it they lie together, below `target`.

    Links, devices and subfolders are left out. An archive that names a file outside of itself is refused.
    """

    def unpack(fetched: Path, folder: Path) -> None:
        with _whole(fetched), tarfile.open(fetched) as archive:
            members = [member for member in archive if member.isfile()]
            for member in members:
                tarfile.data_filter(member, str(folder))
            top = _top(fetched, members, folders)
            wanted = {top / each for each in folders}
            for member in members:
                path = PurePosixPath(member.name)
                if path.parent in wanted:
                    inside = str(target / path.relative_to(top))
                    with naming(folder / inside):
                        archive.extract(member.replace(name=inside, deep=False), folder, filter="data")

    return unpack


def _top(fetched: Path, members: Sequence[tarfile.TarInfo], folders: Sequence[str]) -> PurePosixPath:
    """The folder in the archive that has all of `folders` in it."""
    inside = {PurePosixPath(member.name).parent for member in members}
    depth = len(PurePosixPath(folders[0]).parts)
    tops = {path.parents[depth - 1] for path in inside if path.parts[-depth:] == PurePosixPath(folders[0]).parts}
    if not tops:
        raise DataError(f"{fetched}: no folder {folders[0]} in it")
    top = min(tops, key=lambda path: (len(path.parts), path))
    for folder in folders:
        if top / folder not in inside:
            raise DataError(f"{fetched}: no folder {top / folder} in it")
    return top


def _write(source: BufferedIOBase, target: Path) -> None:
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(source, file)


@contextmanager
def _whole(fetched: Path) -> Iterator[None]:
    try:
        yield
    except tarfile.FilterError as error:
        raise DataError(f"{fetched}: refused, {error}") from error
    except BROKEN as error:
        raise DataError(f"{fetched}: damaged, {error.args[0]}") from error
