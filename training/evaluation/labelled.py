"""Labelled sentences and pairs in SentEval's layout: the seven transfer tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.evaluation.pairs import DataError, data_root, lines

QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
"""Coarse classes of TREC, in the order of their labels."""


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence, or a pair of sentences, with its human label."""

    texts: tuple[str, ...]
    label: int


@dataclass(frozen=True)
class Labelled:
    """The examples of a task by split. If `dev` or `test` is empty, cross-validation on `train` replaces that split."""

    train: Sequence[Example]
    dev: Sequence[Example] = ()
    test: Sequence[Example] = ()

    @property
    def rows(self) -> tuple[int, int, int]:
        """Return the numbers of examples in the splits train, dev and test."""
        return len(self.train), len(self.dev), len(self.test)


@dataclass(frozen=True)
class LabelledFiles:
    """Paths, reader and expected number of examples of a transfer task."""

    folder: str
    files: tuple[str, ...]
    read: Callable[..., Labelled]
    """Function from the paths of `files`, in their order, to the examples."""
    rows: tuple[int, int, int]
    """Expected numbers of examples in train, dev and test."""

    def load(self, data: Path) -> Labelled:
        """Load the task's examples, in file order, from `data` or from its subfolder `senteval/downstream`.

        Raises:
            DataError: a file is missing, a row is broken, or the number of examples is not as expected.
        """
        folder = data_root(data) / self.folder
        labelled = self.read(*(folder / file for file in self.files))
        if labelled.rows != self.rows:
            found, expected = ("/".join(map(str, rows)) for rows in (labelled.rows, self.rows))
            raise DataError(f"{folder}: {found} examples in train/dev/test, expected {expected}")
        return labelled

    def present(self, data: Path) -> bool:
        """Return whether any of the task's files exists. Only `load` checks that all files are complete."""
        return any((data_root(data) / self.folder / file).exists() for file in self.files)


def opposites(positive: Path, negative: Path) -> Labelled:
    """Read two files of sentences, one for each class.

    Empty lines are examples, too, as in SentEval and in the published counts. CR has four, and MPQA has three.
    """
    return Labelled(
        [Example((_single(line),), label) for label, file in ((1, positive), (0, negative)) for line in lines(file)]
    )


def treebank(train: Path, dev: Path, test: Path) -> Labelled:
    """Read the three parts of SST. Each line has a sentence, a tab, and 0 or 1."""
    return Labelled(*(list(_table(file, columns=2, texts=(0,), label=1)) for file in (train, dev, test)))


def paraphrases(train: Path, test: Path) -> Labelled:
    """Read MRPC. Below a header, each row has a label (0 or 1), two numbers and two sentences."""
    parts = (list(_table(file, columns=5, texts=(3, 4), label=0, header="Quality")) for file in (train, test))
    return Labelled(next(parts), test=next(parts))


def questions(train: Path, test: Path) -> Labelled:
    """Read TREC. Each line has a coarse class, a colon, a fine class and a question.

    The files are in Latin-1, unlike those of other tasks.
    """
    return Labelled(list(_questions(train)), test=list(_questions(test)))


def _table(
    file: Path, *, columns: int, texts: tuple[int, ...], label: int, header: str | None = None
) -> Iterator[Example]:
    for number, line in enumerate(lines(file), start=1):
        if header is not None and number == 1:
            if not line.removeprefix("\ufeff").startswith(header):
                raise DataError(f"{file}:1: expected a header that begins with {header}")
            continue
        cells = [_single(cell) for cell in line.split("\t")]
        if len(cells) != columns:
            raise DataError(f"{file}:{number}: {len(cells)} columns separated by tabs, expected {columns}")
        if cells[label] not in {"0", "1"}:
            raise DataError(f"{file}:{number}: {cells[label]!r} is not a label, expected 0 or 1")
        yield _example(tuple(cells[i] for i in texts), int(cells[label]), file=file, number=number)


def _questions(file: Path) -> Iterator[Example]:
    for number, line in enumerate(lines(file, encoding="latin-1"), start=1):
        classes, _, question = line.partition(" ")
        coarse, colon, _ = classes.partition(":")
        if not colon:
            raise DataError(f"{file}:{number}: expected two classes separated by a colon, then a question")
        if coarse not in QUESTIONS:
            raise DataError(f"{file}:{number}: {coarse!r} is not a label, expected one of {', '.join(QUESTIONS)}")
        yield _example((_single(question),), QUESTIONS.index(coarse), file=file, number=number)


def _example(texts: tuple[str, ...], label: int, *, file: Path, number: int) -> Example:
    if not all(texts):
        raise DataError(f"{file}:{number}: the sentence is empty")
    return Example(texts, label)


def _single(text: str) -> str:
    return " ".join(text.split())


TRANSFER_TASKS: dict[str, LabelledFiles] = {
    "MR": LabelledFiles("MR", ("rt-polarity.pos", "rt-polarity.neg"), opposites, (10662, 0, 0)),
    "CR": LabelledFiles("CR", ("custrev.pos", "custrev.neg"), opposites, (3775, 0, 0)),
    "SUBJ": LabelledFiles("SUBJ", ("subj.objective", "subj.subjective"), opposites, (10000, 0, 0)),
    "MPQA": LabelledFiles("MPQA", ("mpqa.pos", "mpqa.neg"), opposites, (10606, 0, 0)),
    "SST2": LabelledFiles(
        "SST/binary", ("sentiment-train", "sentiment-dev", "sentiment-test"), treebank, (67349, 872, 1821)
    ),
    "TREC": LabelledFiles("TREC", ("train_5500.label", "TREC_10.label"), questions, (5452, 0, 500)),
    "MRPC": LabelledFiles(
        "MRPC", ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"), paraphrases, (4076, 0, 1725)
    ),
}
