"""Four small files, the archive and two files that they come from, and a hub with these."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from training.evaluation.datasets.catalogue import Source

FILES = {
    "eval/A/one.txt": b"1\n2\n",
    "eval/B/deep/two.txt": b"3\n",
    "text/corpus.txt": b"a\nb\n",
    "text/ids.tsv": b"x\n",
}


def tar(file: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(file, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def lay(folder: Path) -> None:
    """Write the files into a folder, as after unpacking."""
    for file, content in FILES.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file except the lock and the record."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name not in {"lock", "checksums.json"})
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


class Hub:
    """Hub that records the requested files. A file of `failing` raises an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given: list[str] = []
        self.failing: dict[str, BaseException] = {}
        members = {
            "./data/A/one.txt": FILES["eval/A/one.txt"],
            "./data/A/._one.txt": b"of another system",
            "./data/B/deep/two.txt": FILES["eval/B/deep/two.txt"],
            "./data/C/unwanted.txt": b"not asked for\n",
        }
        tar(folder / "archive.tar", members)
        (folder / "corpus.txt.gz").write_bytes(gzip.compress(FILES["text/corpus.txt"]))
        (folder / "ids.tsv").write_bytes(FILES["text/ids.tsv"])

    def __call__(self, source: Source) -> Path:
        if source.file in self.failing:
            raise self.failing[source.file]
        self.given.append(source.file)
        return self.folder / source.file
