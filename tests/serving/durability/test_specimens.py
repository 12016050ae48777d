"""Data folders that are damaged: each has the files that it is made for, and is right as long as nothing is damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.durability.corrupt import Specimen, accepted, examined, indexed, kept, kind_of
from tests.serving.durability.damage import Case, Task

INDEX = {"index.faiss", "keys.npy", "manifest.json", "vectors.f32"}
SNAPSHOT = {"c/*.tar.zst"}
UPLOAD = {"spool/*"}
LEDGER = {"ledger.sqlite", "ledger.sqlite-wal"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "damaged", "emptied"),
    [
        (indexed, INDEX, INDEX),
        (kept, SNAPSHOT, SNAPSHOT),
        (accepted, UPLOAD, UPLOAD | LEDGER),
        (examined, UPLOAD, UPLOAD | LEDGER),
    ],
)
def test_it_has_what_is_damaged_and_is_right_without(
    made: Callable[[Path], Specimen], damaged: set[str], emptied: set[str], tmp_path: Path
) -> None:
    specimen = made(tmp_path / "made")
    cases = list(specimen.cases())
    assert {kind_of(case.file) for case in cases if case.how == "flip"} == damaged
    assert {kind_of(case.file) for case in cases if case.how == "cut" and not case.at} == emptied
    assert len(set(cases)) == len(cases)
    work = shutil.copytree(specimen.folder, tmp_path / "work")
    task = Task(str(specimen.folder), str(work), specimen.states, specimen.look, specimen.subject)
    assert task.looked(Case("none", 0, "cut")) == ("right", "")
