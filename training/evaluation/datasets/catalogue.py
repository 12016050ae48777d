"""Catalogue of the datasets: their sources on the Hugging Face hub, their files and their checks."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import Any

from models.bundle.disk import naming
from training.evaluation import beir
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS, STSB_DEV, DataError

SENTEVAL = "senteval/downstream"
SCIFACT = "retrieval/scifact"
WIKI1M = "corpus/wiki1m.txt"

# Conversion of fetched files to the project's layout.

Unpack = Callable[[Path, Path], None]
"""Type of a function that unpacks a fetched file into a folder. It raises `DataError` if the file is damaged."""

BROKEN = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)


def copied(target: str, opened: Callable[[Path, str], Any] = open) -> Unpack:
    """Return a function that copies a fetched file to `target`. `opened` is the function that opens the file."""

    def unpack(fetched: Path, folder: Path) -> None:
        with _reading_archive(fetched), opened(fetched, "rb") as source:
            _write(source, folder / target)

    return unpack


def untarred(target: str, folders: Sequence[str]) -> Unpack:
    """Return a function that extracts the folders `folders` of an archive to `target`.

    The folders need a common parent in the archive. Links, devices and subfolders are skipped. The returned function
    raises `DataError` if a file's path in the archive leads outside the destination folder, or if one of `folders` is
    missing.
    """

    def unpack(fetched: Path, folder: Path) -> None:
        with _reading_archive(fetched), tarfile.open(fetched) as archive:
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
    """Return the folder that contains the `folders` to be extracted, as a path within the archive.

    This is the uppermost folder that contains the first of `folders`.

    Raises:
        DataError: no folder contains the first of `folders`, or the returned folder would lack another of them.
    """
    inside = {PurePosixPath(member.name).parent for member in members}
    depth = len(PurePosixPath(folders[0]).parts)
    tops = {path.parents[depth - 1] for path in inside if path.parts[-depth:] == PurePosixPath(folders[0]).parts}
    if not tops:
        raise DataError(f"{fetched}: contains no folder {folders[0]}")
    top = min(tops, key=lambda path: (len(path.parts), path))
    for folder in folders:
        if top / folder not in inside:
            raise DataError(f"{fetched}: contains no folder {top / folder}")
    return top


def _write(source: BufferedIOBase, target: Path) -> None:
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(source, file)


@contextmanager
def _reading_archive(fetched: Path) -> Iterator[None]:
    try:
        yield
    except tarfile.FilterError as error:
        raise DataError(f"{fetched}: refused, {error}") from error
    except BROKEN as error:
        raise DataError(f"{fetched}: damaged, {error.args[0]}") from error


# Data sets with their sources, files and checks.

Check = Callable[[Path], str]
"""Type of a function that checks a dataset in the data folder, and describes its counts or raises `DataError`."""


@dataclass(frozen=True)
class Source:
    """A file of a dataset on the hub. Its commit is fixed, because a later commit may change or remove the file."""

    repo: str
    commit: str
    file: str
    megabytes: float
    unpack: Unpack


@dataclass(frozen=True)
class Dataset:
    """A dataset that can be fetched by name."""

    summary: str
    sources: tuple[Source, ...]
    files: tuple[str, ...]
    """Glob patterns of the dataset's files, relative to the data folder."""
    check: Check

    def present(self, folder: Path) -> list[str]:
        """Return the relative paths of the dataset's files that exist in `folder`, without hidden files."""
        found = {path for pattern in self.files for path in folder.glob(pattern) if path.is_file()}
        return sorted(path.relative_to(folder).as_posix() for path in found if not path.name.startswith("."))


def scored_pairs(folder: Path) -> str:
    """Check the data of the seven STS tasks and STS-B dev. Return a text with the numbers of tasks and pairs.

    Raises:
        DataError: data is missing or broken.
    """
    tasks = (*STS_TASKS.values(), STSB_DEV)
    pairs = sum(len(subset) for task in tasks for subset in task.load(folder / SENTEVAL).values())
    return f"{len(STS_TASKS)} tasks and STS-B dev, {pairs} scored pairs"


def labelled_examples(folder: Path) -> str:
    """Check the transfer data. Return a text with the numbers of tasks and labelled examples.

    Raises:
        DataError: data is missing or broken.
    """
    examples = sum(sum(task.load(folder / SENTEVAL).rows) for task in TRANSFER_TASKS.values())
    return f"{len(TRANSFER_TASKS)} tasks, {examples} labelled examples"


def collection(place: str, documents: int, **splits: tuple[int, int]) -> Check:
    """Return a function that checks the size of the collection in the folder `place`.

    `documents` is the expected number of documents. `splits` has, for each split, the expected numbers of queries and
    judgements.
    """

    def check(folder: Path) -> str:
        for split, expected in splits.items():
            found = beir.load(folder / place, split)
            counts = len(found.queries), sum(map(len, found.judgements.values()))
            if (len(found.documents), *counts) != (documents, *expected):
                raise DataError(
                    f"{folder / place}: {len(found.documents)} documents, {counts[0]} queries and {counts[1]} "
                    f"judgements in {split}, expected {documents}, {expected[0]} and {expected[1]}"
                )
        queries = ", ".join(f"{count} {split} queries" for split, (count, _) in splits.items())
        return f"{documents} documents, {queries}"

    return check


def text_lines(place: str, expected: int) -> Check:
    """Return a function that checks that the UTF-8 file `place` has `expected` lines. Only a newline ends a line."""

    def check(folder: Path) -> str:
        file, found = folder / place, 0
        try:
            with file.open("rb") as stream:
                for line in stream:
                    found += 1
                    line.decode()
        except OSError as error:
            raise DataError(f"{file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{file}:{found}: not UTF-8 in column {error.start + 1}") from error
        if found != expected:
            raise DataError(f"{file}: {found} lines, expected {expected}")
        return f"{expected} lines"

    return check


# The catalogue.

SIMCSE = ("princeton-nlp/datasets-for-simcse", "e145e8bb659b2aa2669f32ef79cb4cdef6c58fef")
SCIFACT_TEXTS = ("BeIR/scifact", "984eed826375f18d27936c4a32bf0f8491e3f414")
SCIFACT_QRELS = ("BeIR/scifact-qrels", "2938d17dc3b09882fdb8c12bbbe2e2dc0e75a029")
"""Repositories and commits of the data."""


def _senteval(summary: str, folders: list[str], check: Check) -> Dataset:
    source = Source(*SIMCSE, "senteval.tar", 89.8, untarred(SENTEVAL, folders))
    return Dataset(summary, (source,), tuple(f"{SENTEVAL}/{folder}/*" for folder in folders), check)


CATALOGUE: dict[str, Dataset] = {
    "sts": _senteval(
        "STS12 to STS16, STS-B and SICK-R, as SentEval scores them",
        [task.folder for task in STS_TASKS.values()],
        scored_pairs,
    ),
    "transfer": _senteval(
        "MR, CR, SUBJ, MPQA, SST2, TREC and MRPC, SentEval's transfer tasks",
        [task.folder for task in TRANSFER_TASKS.values()],
        labelled_examples,
    ),
    "wiki1m": Dataset(
        "a million sentences of Wikipedia, the corpus of SimCSE and its successors",
        (Source(*SIMCSE, "wiki1m_for_simcse.txt", 120, copied(WIKI1M)),),
        (WIKI1M,),
        text_lines(WIKI1M, 1_000_000),
    ),
    "scifact": Dataset(
        "scientific claims and the abstracts that answer them, of BEIR",
        (
            Source(*SCIFACT_TEXTS, "corpus.jsonl.gz", 2.76, copied(f"{SCIFACT}/corpus.jsonl", gzip.open)),
            Source(*SCIFACT_TEXTS, "queries.jsonl.gz", 0.05, copied(f"{SCIFACT}/queries.jsonl", gzip.open)),
            Source(*SCIFACT_QRELS, "test.tsv", 0.01, copied(f"{SCIFACT}/qrels/test.tsv")),
            Source(*SCIFACT_QRELS, "train.tsv", 0.01, copied(f"{SCIFACT}/qrels/train.tsv")),
        ),
        tuple(f"{SCIFACT}/{file}" for file in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "qrels/train.tsv")),
        collection(SCIFACT, 5183, test=(300, 339), train=(809, 919)),
    ),
}
