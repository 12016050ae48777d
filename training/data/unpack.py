"""Conversion of fetched files to the project's layout."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path, PurePosixPath

from models.bundle.disk import naming
from training.evaluation.pairs import DataError

Unpack = Callable[[Path, Path], None]
"""A function that unpacks a fetched file into a folder. It raises `DataError` if the file is damaged."""

BROKEN = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)


def copied(target: str) -> Unpack:
    """Return a function that copies the file to `target`."""

    def unpack(fetched: Path, folder: Path) -> None:
        with fetched.open("rb") as source:
            _write(source, folder / target)

    return unpack


def gunzipped(target: str) -> Unpack:
    """Return a function that decompresses the file to `target`."""

    def unpack(fetched: Path, folder: Path) -> None:
        with _whole(fetched), gzip.open(fetched) as source:
            _write(source, folder / target)

    return unpack


def untarred(target: str, folders: Sequence[str]) -> Unpack:
    """Return a function that extracts these folders of an archive below `target`.

    The folders need a common parent in the archive. Links, devices and subfolders are skipped. An archive with paths
    outside itself is rejected.
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
    """Find the folder in the archive that contains all of `folders`."""
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
