"""Dates as points in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.filters import instant


@pytest.mark.parametrize(
    "same",
    [
        ["2024-03-05", "2024-03-05T00:00:00Z", "2024-03-05 00:00", "2024-03-04t22:00:00.000-02:00"],
        ["2024-03-05T10:00:00+02:00", "2024-03-05T08:00:00Z", "2024-03-05T08:00:00", "2024-03-05T13:30+0530"],
        ["2016-12-31T23:59:60Z", "2017-01-01"],
        ["0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00.0+23:59"],
    ],
)
def test_one_point_in_time_is_written_in_several_ways(same: list[str]) -> None:
    assert len({instant(text) for text in same} - {None}) == 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "2024", "2024-03", "20240305", "2024-02-30", "0000-01-01", "2024-03-05T24:00", "2024-03-05T10", "10:00"),
        *("2024-03-05T10:00:00 Z", "2024-03-05Z", " 2024-03-05", "2024-03-05\n", "٢٠٢٤-03-05", "2024-W10-2"),
    ],
)
def test_other_strings_are_none(text: str) -> None:
    assert instant(text) is None


def test_digits_beyond_microseconds_count() -> None:
    times = [f"9999-12-31T23:59:59{fraction}Z" for fraction in ("", ".000000001", ".1", ".1000000001", ".11", ".2")]
    found = [instant(time) for time in times]
    assert found == sorted(set(found), key=lambda one: one or b"")


moments = st.datetimes(
    datetime(1, 1, 2),
    datetime(9999, 12, 30),
    timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))) | st.just(UTC),
)


@given(moments, moments)
def test_they_sort_as_what_they_name(one: datetime, other: datetime) -> None:
    left, right = instant(one.isoformat()), instant(other.isoformat())
    assert left is not None
    assert right is not None
    assert (left < right) == (one < other)
