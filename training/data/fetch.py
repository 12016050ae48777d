"""Brings a dataset into a folder, once, and holds it to its counts and checksums."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from models.disk import fsync, naming
from training.data import checksums
from training.data.catalogue import Dataset, Source
from training.data.checksums import Sum
from training.data.hub import Download, HubError, by_hand, instructions
from training.evaluation.pairs import DataError
from training.lock import locked

DRAFT = ".draft"


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$ISOSPHERE_DATA`, else `isosphere/data` in the user's cache (`$XDG_CACHE_HOME`, else `~/.cache`)."""
    if chosen := environment.get("ISOSPHERE_DATA"):
        try:
            return Path(chosen).expanduser()
        except RuntimeError as error:
            raise DataError(f"ISOSPHERE_DATA={chosen}: {error}") from error
    cache = Path(environment.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "isosphere" / "data"


def provide(name: str, dataset: Dataset, folder: Path, stream: TextIO, *, download: Download | None) -> None:
    """On return the dataset is in `folder`, whole, and its checksums are recorded. What is whole is not fetched again.

    What is missing is taken from `downloads/` in `folder`, where a person may have put the hub's files, or fetched by
    `download`; None fetches nothing. A file that is there is never replaced. Says on `stream` what it does.

    Raises:
        DataError: a file is altered, can't be had, is damaged, or is not what it must be.
        OSError: the folder can't be written to.
    """
    lack = _lack(name, dataset, folder, stream)
    if lack is None:
        return
    fetched = by_hand(dataset, folder)
    brought = frozenset(fetched)
    for source in dataset.sources:
        if source in brought:
            continue
        if download is None:
            place = shlex.quote(str(folder))
            raise DataError(f"{lack}; `isosphere data get {name} --to {place}` fetches it")
        print(f"{name}: {source.file} of {source.repo}, {source.megabytes:g} MB", file=stream, flush=True)
        try:
            fetched[source] = download(source)
        except HubError as error:
            hint = instructions(name, dataset, folder, brought)
            raise DataError(f"{name}: {source.file} of {source.repo} can't be fetched ({error}): {hint}") from error
    with locked(folder, wait=True), _draft(folder / DRAFT) as draft:
        counted = _unpacked(dataset, fetched, draft)
        _place(dataset.present(draft), draft, folder)
        sources = [_origin(source, file, source not in brought) for source, file in fetched.items()]
        entry = checksums.write(folder, name, dataset.present(folder), sources)
    print(f"{name}: {counted}, {len(entry.files)} files in {folder}", file=stream)


def _lack(name: str, dataset: Dataset, folder: Path, stream: TextIO) -> str | None:
    """What is missing or wrong, None if nothing is; then it is recorded, too."""
    if recorded := checksums.read(folder).get(name):
        missing = recorded.missing(folder)
        if missing:
            return f"{folder / missing[0]}: missing"
        print(f"{name}: already there, {len(recorded.files)} files as recorded in {folder}", file=stream)
        return None
    try:
        counted = dataset.check(folder)
    except DataError as error:
        return str(error)
    with locked(folder, wait=True):
        entry = checksums.write(folder, name, dataset.present(folder), [])
    print(f"{name}: found {counted}, {len(entry.files)} files in {folder}", file=stream)
    return None


def _unpacked(dataset: Dataset, fetched: Mapping[Source, Path], draft: Path) -> str:
    """Lays all files into the draft, and says what they hold."""
    for source, file in fetched.items():
        source.unpack(file, draft)
    try:
        return dataset.check(draft)
    except DataError as error:
        names = ", ".join(map(str, fetched.values()))
        raise DataError(f"{names}: {str(error).replace(f'{draft}/', '')}") from error


def _place(files: list[str], draft: Path, folder: Path) -> None:
    """Moves in what is missing, each file at once, and nothing if a file that is there is another.

    The record, written later, tells that all are there; after an interruption the next call brings the others.
    """
    absent = [file for file in files if not (folder / file).exists()]
    for file in files:
        if file not in absent and Sum.of(folder / file) != Sum.of(draft / file):
            raise DataError(f"{folder / file}: not the file that was fetched; remove it, and it is replaced")
    for file in absent:
        target = folder / file
        with naming(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            fsync(draft / file)
            (draft / file).replace(target)
            fsync(target.parent)


@contextmanager
def _draft(folder: Path) -> Iterator[Path]:
    """An empty folder that is gone afterwards; a kill may have left an earlier one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _origin(source: Source, file: Path, from_hub: bool) -> dict[str, Any]:
    commit = source.commit if from_hub else None
    return {"repo": source.repo, "commit": commit, "file": source.file, **asdict(Sum.of(file))}
