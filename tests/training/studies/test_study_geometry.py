"""Tests of the geometry of the vectors in a study's report."""

import re
from pathlib import Path

from tests.training.studies.conftest import line, write
from training.studies.page import page
from training.studies.results import RESULTS, read_results
from training.studies.summary import Summary, summarise
from training.studies.table import geometry_grid, table

Line = dict[str, object]


def summary(folder: Path, *lines: Line) -> Summary:
    write(folder, *lines)
    return summarise(read_results(folder / RESULTS), folder)


def seeds(arm: str, **of: list[float]) -> list[Line]:
    """Return a run for each value."""
    return [
        line(arm, seed, 70.0 + seed, **dict(zip(of, values, strict=True)))
        for seed, values in enumerate(zip(*of.values(), strict=True))
    ]


def test_a_line_an_arm_with_the_spread_of_its_seeds(tmp_path: Path) -> None:
    before = seeds("before", alignment=[0.3], uniformity=[-1.5], effective_rank=[61.4])
    after = seeds("after", alignment=[0.21, 0.23], uniformity=[-2.5, -2.7], effective_rank=[100.0, 104.0])
    found = summary(tmp_path, *before, *after)
    assert geometry_grid(found) == [
        ["arm", "alignment", "uniformity", "effective rank"],
        ["before", "0.300", "-1.50", "61"],
        ["after", "0.220 ± 0.014", "-2.60 ± 0.14", "102 ± 3"],
    ]
    assert re.search(r"^after +0\.220 ± 0\.014 +-2\.60 ± 0\.14 +102 ± 3$", table(found), re.MULTILINE)
    shown = page("study", "", found)
    assert "Geometry of the vectors" in shown and "−2.60 ± 0.14" in shown


def test_results_of_before_have_no_effective_rank(tmp_path: Path) -> None:
    of_today = seeds("today", alignment=[0.2], uniformity=[-2.5], effective_rank=[90.0])
    assert geometry_grid(summary(tmp_path, line("old", 0, 70.0), line("old", 1, 71.0))) == [
        ["arm", "alignment", "uniformity"],
        ["old", "0.200 ± 0.000", "-2.50 ± 0.00"],
    ]
    mixed = geometry_grid(summary(tmp_path, line("old", 0, 70.0), *of_today))
    assert [each[-1] for each in mixed] == ["effective rank", "", "90"]


def test_an_arm_of_which_one_seed_was_not_measured_has_no_mean(tmp_path: Path) -> None:
    (measured,) = seeds("arm", effective_rank=[90.0])
    other = seeds("other", effective_rank=[80.0])
    found = geometry_grid(summary(tmp_path, measured, line("arm", 1, 71.0), *other))
    assert [each[-1] for each in found] == ["effective rank", "", "80"]


def test_what_was_judged_by_no_sentence_pairs_has_none(tmp_path: Path) -> None:
    found = summary(tmp_path, line("arm", 0, 70.0, alignment=None, uniformity=None))
    assert geometry_grid(found) == []
    assert "Geometry of the vectors" not in page("study", "", found) and "effective rank" not in table(found)
