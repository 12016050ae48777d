"""Files of datasets, from the hub or from where a person put them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from pathlib import Path

from training.data.catalogue import Dataset, Source
from training.evaluation.pairs import DataError

DOWNLOADS = "downloads"


class HubError(DataError):
    """A file can't be fetched from the hub. The message says why."""


Download = Callable[[Source], Path]
"""A function that fetches a source and returns its path. It raises `HubError`."""


def from_hub(source: Source) -> Path:
    """Return the file in the hub's local cache, and fetch it if needed.

    An interrupted download is resumed.

    Raises:
        HubError: there is no network, or no such file.
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


def by_hand(dataset: Dataset, folder: Path) -> dict[Source, Path]:
    """Find the files that a person has put into `downloads/<repo>` in `folder`."""
    places = {source: folder / DOWNLOADS / source.repo / source.file for source in dataset.sources}
    return {source: place for source, place in places.items() if place.is_file()}


def instructions(name: str, dataset: Dataset, folder: Path, brought: Collection[Source]) -> str:
    """Tell which files to fetch elsewhere, and where to put them."""
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
