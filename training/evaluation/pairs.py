"""Scored sentence pairs: the seven STS tasks and STS-B dev in SentEval's layout, and the user's own files."""

from __future__ import annotations

import math
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from models.errors import Refused
from training.data.files import CorpusError, resolve_files, rows

Subsets = Mapping[str, "list[Pair]"]


class DataError(Refused):
    """Evaluation data is missing or broken. The message names the file and, if possible, the line."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences with their human similarity score."""

    a: str
    b: str
    gold: float


@dataclass(frozen=True)
class TaskFiles:
    """Paths, reader and expected number of pairs of an STS task."""

    folder: str
    files: str
    """Pattern of the task's file names. Files of several tasks or splits may be in the same folder."""
    read: Callable[[Path], dict[str, list[Pair]]]
    pairs: int

    def load(self, data: Path) -> Subsets:
        """Load the task's subsets, by name, from `data` or from its subfolder `senteval/downstream`.

        Raises:
            DataError: a file is missing, a row is broken, or the number of pairs is not as expected.
        """
        folder = data_root(data) / self.folder
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; `isosphere data get sts` fetches it")
        subsets = self.read(folder)
        found = sum(map(len, subsets.values()))
        if found != self.pairs:
            raise DataError(f"{folder}: {found} scored pairs, expected {self.pairs}")
        return MappingProxyType(subsets)

    def present(self, data: Path) -> bool:
        """Return whether any of the task's files exists. Only `load` checks that all files are complete."""
        return any((data_root(data) / self.folder).glob(self.files))


def texts(tasks: Mapping[str, Subsets]) -> list[str]:
    """Return the distinct sentences of all tasks, sorted."""
    pairs = (pair for subsets in tasks.values() for each in subsets.values() for pair in each)
    return sorted({text for pair in pairs for text in (pair.a, pair.b)})


def sts_year(*subsets: str) -> Callable[[Path], dict[str, list[Pair]]]:
    """Return a reader for one year of SemEval. Each subset has a file of pairs and a file of scores."""
    return lambda folder: {name: list(_semeval(folder, name)) for name in subsets}


def sts_benchmark(part: str) -> Callable[[Path], dict[str, list[Pair]]]:
    """Return a reader for a split of STS-B. Columns 5 to 7 are the score and the two sentences."""
    return lambda folder: {part: list(_table(folder / f"sts-{part}.csv", gold=4, a=5, b=6, header=False))}


def sick(part: str, file: str) -> Callable[[Path], dict[str, list[Pair]]]:
    """Return a reader for a split of SICK. The reader uses the relatedness scores."""
    return lambda folder: {part: list(_table(folder / file, gold=3, a=1, b=2, header=True))}


OWN = ("sentence1", "sentence2", "score")
"""Columns of a user's own file of pairs. Similarity datasets on the hub use the same names."""


def own_pairs(file: str) -> list[Pair]:
    """Read pairs from `file`, which is a file, a folder, a glob pattern, or a data set on the hub.

    The columns are `sentence1`, `sentence2` and `score`. Scores may have any scale.

    Raises:
        DataError: a file can't be read, a row is broken, there are no pairs, or all scores or all texts are
            equal.
        Refused, RemoteError: see `training.data.files.download_from_hub`.
    """
    try:
        pairs = [
            _own_pair(where, *row)
            for path in resolve_files([file])
            for where, row in rows(path, *((name,) for name in OWN))
        ]
    except CorpusError as error:
        raise DataError(str(error)) from error
    if len({pair.gold for pair in pairs}) < 2:
        raise DataError(f"{file}: {len(pairs)} pairs with the same score, which can't rank encoders")
    if len({text for pair in pairs for text in (pair.a, pair.b)}) < 2:
        raise DataError(f"{file}: {len(pairs)} pairs of the same text, which can't rank encoders")
    return pairs


def _own_pair(where: str, a: Any, b: Any, gold: Any) -> Pair:
    if not (isinstance(a, str) and isinstance(b, str) and a.strip() and b.strip()):
        raise DataError(f"{where}: {OWN[0]} and {OWN[1]} must both be texts")
    try:
        score = float(gold)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{where}: {OWN[2]}: {gold!r:.40} is not a number")
    return Pair(" ".join(a.split()), " ".join(b.split()), score)


def _semeval(folder: Path, subset: str) -> Iterator[Pair]:
    """Yield the pairs of a subset. Pairs without a score, which were never rated, are skipped, as in SentEval."""
    inputs, scores = (folder / f"STS.{kind}.{subset}.txt" for kind in ("input", "gs"))
    rows, golds = lines(inputs), lines(scores)
    if len(rows) != len(golds):
        raise DataError(f"{scores}: {len(golds)} lines, but {inputs.name} has {len(rows)}")
    for number, (row, gold) in enumerate(zip(rows, golds, strict=True), start=1):
        if gold.strip():
            columns = row.split("\t")
            if len(columns) < 2:
                raise DataError(f"{inputs}:{number}: expected two sentences separated by a tab")
            yield _pair(columns[0], columns[1], gold, where=inputs, scored=scores, number=number)


def _table(file: Path, *, gold: int, a: int, b: int, header: bool) -> Iterator[Pair]:
    for number, line in enumerate(lines(file), start=1):
        if header and number == 1:
            continue
        columns = line.split("\t")
        if len(columns) < (expected := max(gold, a, b) + 1):
            raise DataError(f"{file}:{number}: {len(columns)} columns separated by tabs, expected {expected}")
        yield _pair(columns[a], columns[b], columns[gold], where=file, scored=file, number=number)


def _pair(a: str, b: str, gold: str, *, where: Path, scored: Path, number: int) -> Pair:
    a, b = " ".join(a.split()), " ".join(b.split())
    if not (a and b):
        raise DataError(f"{where}:{number}: the sentence is empty")
    try:
        score = float(gold)
    except ValueError:
        raise DataError(f"{scored}:{number}: {gold.strip()!r} is not a score") from None
    if not 0 <= score <= 5:
        raise DataError(f"{scored}:{number}: a score of {gold.strip()}, expected 0 to 5")
    return Pair(a, b, score)


def lines(file: Path, *, encoding: str = "utf-8") -> list[str]:
    """Read the lines of `file`. Only a newline ends a line, because the texts contain other line breaks of Unicode.

    Raises:
        DataError: the file can't be read, or a line is not in `encoding`.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from error
    decoded = []
    for number, line in enumerate(content.removeprefix(BOM_UTF8).removesuffix(b"\n").split(b"\n"), start=1):
        try:
            decoded.append(line.decode(encoding))
        except UnicodeDecodeError as error:
            raise DataError(f"{file}:{number}: not {encoding.upper()} in column {error.start + 1}") from error
    return decoded


def data_root(data: Path) -> Path:
    """Return the folder `senteval/downstream` or `downstream` in `data`, or else `data` itself."""
    nested = (data / "senteval" / "downstream", data / "downstream")
    return next((folder for folder in nested if folder.is_dir()), data)


def _year(year: str, pairs: int, *subsets: str) -> TaskFiles:
    return TaskFiles(f"STS/{year}-en-test", "STS.*.txt", sts_year(*subsets), pairs)


STS_TASKS: dict[str, TaskFiles] = {
    "STS12": _year("STS12", 3108, "MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": _year("STS13", 1500, "FNWN", "headlines", "OnWN"),
    "STS14": _year("STS14", 3750, "deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": _year("STS15", 3000, "answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": _year("STS16", 1186, "answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
    "STSB": TaskFiles("STS/STSBenchmark", "sts-test.csv", sts_benchmark("test"), 1379),
    "SICKR": TaskFiles("SICK", "SICK_test_annotated.txt", sick("test", "SICK_test_annotated.txt"), 4927),
}
STSB_DEV = TaskFiles("STS/STSBenchmark", "sts-dev.csv", sts_benchmark("dev"), 1500)
SICKR_DEV = TaskFiles("SICK", "SICK_trial.txt", sick("dev", "SICK_trial.txt"), 500)


def sts_tasks(data: Path) -> dict[str, Subsets]:
    """Load the STS tasks that exist in `data`.

    Raises:
        DataError: a task's data is broken or incomplete.
    """
    return {name: files.load(data) for name, files in STS_TASKS.items() if files.present(data)}
