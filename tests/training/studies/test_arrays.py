"""Tests of the values that a run stores for every pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.studies.scores import load_arrays, save_arrays
from training.studies.trial import StudyError


def test_a_wrong_byte_anywhere_is_an_error_that_names_the_file_or_changes_nothing(tmp_path: Path) -> None:
    file, values = tmp_path / "cosines.npz", np.linspace(0, 1, 7)
    save_arrays(file, {"cosine": {"STS12": values, "STSB dev": values[:3]}})
    whole, refused = file.read_bytes(), 0
    for place in range(len(whole)):
        for flipped in (0x01, 0xFF):
            damaged = bytearray(whole)
            damaged[place] ^= flipped
            file.write_bytes(damaged)
            try:
                (found,) = load_arrays(file, "cosine")
            except StudyError as error:
                assert str(file) in str(error)
                refused += 1
            else:
                assert set(map(len, found.values())) <= {3, 7}
                assert all(np.array_equal(each, values[: len(each)]) for each in found.values())
    assert refused > len(whole)


def test_a_kind_that_was_not_asked_for_is_named(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.npz", {"cosine": {"STS12": np.zeros(2)}})
    with pytest.raises(StudyError, match=r"a\.npz: cosine STS12: unknown"):
        load_arrays(tmp_path / "a.npz", "gold")
