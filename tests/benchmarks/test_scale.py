"""Tests of the page about scale: its tables follow from the stored constants."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scale

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_the_page_has_the_tables_of_the_stored_constants() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for table in scale.tables(scale.measured(), scale.Choice()):
        assert f"\n\n{table}\n\n" in page, "run `python -m benchmarks.scale`, and put its tables into docs/scale.md"


def test_a_power_law_goes_through_both_sizes() -> None:
    by_size = {100: 1.0, 1_000: 2.0}
    assert [scale.grown(by_size, n) for n in (100, 1_000, 10_000)] == pytest.approx([1, 2, 4])


def test_larger_machines_and_segments_need_fewer_machines() -> None:
    known = scale.measured()
    small = list(scale.plans(known, scale.Choice()))
    large = list(scale.plans(known, scale.Choice(segment_gb=16)))
    assert large[-1].search_ms < small[-1].search_ms
    assert [one.memory_gb for one in large] == [one.memory_gb for one in small]


def test_hours_of_a_gpu_follow_from_your_own_figure(capsys: pytest.CaptureFixture[str]) -> None:
    scale.main(["--gpu-texts-per-s", "10000"])
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| 1,000,000,000 "))
    assert row.endswith("| 28 |")
