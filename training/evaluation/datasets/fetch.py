"""Download of datasets into a folder, with checks of counts and checksums."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from models.bundle.disk import fsync, naming
from training.evaluation.datasets import checksums
from training.evaluation.datasets.catalogue import Dataset, Source
from training.evaluation.datasets.checksums import Sum
from training.evaluation.pairs import DataError
from training.machine.interrupt import locked

DRAFT = ".draft"
"""Name of the subfolder in which a dataset is unpacked and checked before its files are moved into place."""


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder `$ISOSPHERE_DATA`, or by default `isosphere/data` in `$XDG_CACHE_HOME` or `~/.cache`.

    Raises:
        DataError: no home directory is known for the current user, or for the user of a path such as `~ann/data` in
            `$ISOSPHERE_DATA`.
    """
    chosen, cache = environment.get("ISOSPHERE_DATA"), Path(environment.get("XDG_CACHE_HOME", ""))
    try:
        if chosen:
            return Path(chosen).expanduser()
        return (cache if cache.is_absolute() else Path.home() / ".cache") / "isosphere" / "data"
    except RuntimeError as error:
        where = f"ISOSPHERE_DATA={chosen}: " if chosen else ""
        raise DataError(f"{where}{error} Name the folder with --to") from error


def provide(name: str, dataset: Dataset, folder: Path, stream: TextIO, *, download: Download | None) -> None:
    """Put the complete dataset into `folder` and record its checksums.

    A complete dataset is not fetched again. Files that the user has put into `downloads/` in `folder` are used. The
    function `download` fetches all other files from the hub. If `download` is None, nothing is fetched, and a missing
    file is an error. Existing files of the dataset are never replaced. Progress goes to `stream`.

    Raises:
        DataError: a file has changed, can't be fetched, is damaged, or differs from the file that already exists; or
            the dataset fails its check.
        OSError: the folder can't be written to.
    """
    lack = _first_problem(name, dataset, folder, stream)
    if lack is None:
        return
    fetched = downloaded_by_hand(dataset, folder)
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


def _first_problem(name: str, dataset: Dataset, folder: Path, stream: TextIO) -> str | None:
    """Return the first problem of the dataset in `folder`, or None if the dataset is complete.

    Record the checksums of a complete dataset if they are not recorded yet.
    """
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
    """Unpack all `fetched` files into `draft`, check the dataset there, and return the dataset's counts as a text."""
    for source, file in fetched.items():
        source.unpack(file, draft)
    try:
        return dataset.check(draft)
    except DataError as error:
        names = ", ".join(map(str, fetched.values()))
        raise DataError(f"{names}: {str(error).replace(f'{draft}/', '')}") from error


def _place(files: list[str], draft: Path, folder: Path) -> None:
    """Move `files` from `draft` into `folder`, each atomically, except files that already exist in `folder`.

    If a file in `folder` differs from its counterpart in `draft`, no file is moved, and `DataError` is raised. The
    dataset is recorded only after all files are moved. After an interruption, the next call moves the remaining files.
    """
    absent = [file for file in files if not (folder / file).exists()]
    for file in files:
        if file not in absent and Sum.of(folder / file) != Sum.of(draft / file):
            raise DataError(f"{folder / file}: differs from the fetched file; remove it to get the fetched one")
    for file in absent:
        target = folder / file
        with naming(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            fsync(draft / file)
            (draft / file).replace(target)
            fsync(target.parent)


@contextmanager
def _draft(folder: Path) -> Iterator[Path]:
    """Create an empty `folder`, and remove it after the `with` block.

    If a killed process has left `folder` behind, the folder's content is removed first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _origin(source: Source, file: Path, from_hub: bool) -> dict[str, Any]:
    commit = source.commit if from_hub else None
    return {"repo": source.repo, "commit": commit, "file": source.file, **asdict(Sum.of(file))}


# Files of datasets, downloaded from the hub or by the user.

DOWNLOADS = "downloads"


class HubError(DataError):
    """A file can't be fetched from the hub. The message contains the reason."""


Download = Callable[[Source], Path]
"""Type of a function that fetches a source and returns its path. It raises `HubError`."""


def from_hub(source: Source) -> Path:
    """Return the path of a source's file in the hub's local cache. Download the file first if needed.

    An interrupted download is resumed.

    Raises:
        HubError: there is no network, or the file does not exist.
        OSError: the disk failed.
    """
    from httpx import HTTPError
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled, XetDownloadError

    try:
        return Path(hf_hub_download(source.repo, source.file, repo_type="dataset", revision=source.commit))
    except (HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, XetDownloadError) as error:
        reason = str(error).strip().partition("\n")[0].removesuffix(".")
        raise HubError(reason or type(error).__name__) from error


def downloaded_by_hand(dataset: Dataset, folder: Path) -> dict[Source, Path]:
    """Return, for each source, the path of the file that the user has put into `downloads/<repo>` in `folder`.

    Sources without such a file are left out.
    """
    places = {source: folder / DOWNLOADS / source.repo / source.file for source in dataset.sources}
    return {source: place for source, place in places.items() if place.is_file()}


def instructions(name: str, dataset: Dataset, folder: Path, brought: Collection[Source]) -> str:
    """Return instructions for the user: which files to fetch on another machine, where to put them, and how to verify.

    The sources `brought` are left out, because the user has already put their files into `downloads/` in `folder`.
    """
    wanted: dict[tuple[str, str], list[str]] = {}
    for source in dataset.sources:
        if source not in brought:
            wanted.setdefault((source.repo, source.commit), []).append(source.file)
    steps = "; ".join(
        f"fetch {' and '.join(files)} of the hub dataset {repo}, commit {commit}, elsewhere "
        f"and put it into {folder / DOWNLOADS / repo}"
        for (repo, commit), files in wanted.items()
    )
    return f"{steps}; then: isosphere data verify {name} --to {shlex.quote(str(folder))}"
