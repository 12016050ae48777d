"""The file `checksums.json`, which records the files and sources of every dataset in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from models.bundle.bundle import sha256
from models.bundle.disk import naming, write_whole
from training.data import strict_json
from training.evaluation.pairs import DataError

CHECKSUMS = "checksums.json"


@dataclass(frozen=True)
class Sum:
    """Checksum and size of a file."""

    sha256: str
    size: int

    @classmethod
    def of(cls, file: Path) -> Sum:
        with naming(file):
            return cls(sha256(file), file.stat().st_size)


@dataclass(frozen=True)
class Entry:
    """The record of a complete dataset: its files, their checksums and sources."""

    time: str
    """UTC time of the record, in ISO 8601."""
    sources: tuple[Mapping[str, Any], ...]
    """Source files: repo, file, sha256, size and commit.

    The commit is null if the user downloaded the file by hand. If the dataset was already in the folder and nothing was
    fetched, there are no source files.
    """
    files: Mapping[str, Sum]
    """Checksums by path, relative to the folder of the data."""

    def missing(self, folder: Path) -> list[str]:
        """Return the recorded files that no longer exist.

        Raises:
            DataError: a recorded file has changed.
        """
        missing = [file for file in self.files if not (folder / file).is_file()]
        for file, expected in self.files.items():
            if file not in missing and Sum.of(folder / file) != expected:
                raise DataError(
                    f"{folder / file}: changed since {self.time}: its SHA-256 differs from {CHECKSUMS}; "
                    "remove it, and `data get` brings it back"
                )
        return missing


def read(folder: Path) -> dict[str, Entry]:
    """Return the record of each dataset in `folder`, by name. Without a `checksums.json`, the result is empty.

    Raises:
        DataError: `checksums.json` can't be read or has no valid records.
    """
    file = folder / CHECKSUMS
    if not file.exists():
        return {}
    try:
        return {
            name: Entry(
                str(entry["time"]),
                tuple(map(dict, entry["sources"])),
                {path: Sum(**values) for path, values in entry["files"].items()},
            )
            for name, entry in strict_json.loads(file.read_text(encoding="utf-8")).items()
        }
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{file}: not a record of checksums; remove the file, and `data verify` writes a new one"
        ) from error


def write(folder: Path, name: str, files: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> Entry:
    """Record the current checksums of `files`, the files of the dataset `name`, and return the new record.

    The records of other datasets stay.
    """
    sums = {file: Sum.of(folder / file) for file in files}
    entry = Entry(datetime.now(UTC).isoformat(timespec="seconds"), tuple(sources), sums)
    entries = {**read(folder), name: entry}
    text = json.dumps({each: asdict(entries[each]) for each in sorted(entries)}, indent=2)
    write_whole(folder / CHECKSUMS, text + "\n")
    return entry
