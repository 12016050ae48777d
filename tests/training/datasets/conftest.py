"""Fixtures: a small dataset, and a hub that has it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.training.datasets.samples import FILES, Hub
from training.evaluation.datasets.catalogue import Dataset, Source, copied, untarred
from training.evaluation.pairs import DataError


def check(folder: Path) -> str:
    for file, content in FILES.items():
        if not (folder / file).is_file():
            raise DataError(f"{folder / file}: No such file or directory")
        if (folder / file).read_bytes().count(b"\n") != content.count(b"\n"):
            raise DataError(f"{folder / file}: not as many lines as there must be")
    return "6 lines"


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    (tmp_path / "hub").mkdir()
    return Hub(tmp_path / "hub")


@pytest.fixture
def dataset() -> Dataset:
    sources = (
        Source("some/archive", "a" * 40, "archive.tar", 1.5, untarred("eval", ["A", "B/deep"])),
        Source("some/texts", "b" * 40, "corpus.txt.gz", 0.1, copied("text/corpus.txt", gzip.open)),
        Source("some/texts", "b" * 40, "ids.tsv", 0.1, copied("text/ids.tsv")),
    )
    return Dataset("a small one", sources, ("eval/A/*", "eval/B/deep/*", "text/*"), check)
