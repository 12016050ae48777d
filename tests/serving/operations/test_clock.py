"""Tests of timestamps of RFC 3339 against Python's datetime."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import Invalid
from serving.operations.clock import EARLIEST, LATEST, moment, now, timestamp

zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=zones))
def test_a_timestamp_is_its_moment(when: datetime) -> None:
    found = moment(when.isoformat(), "at")
    assert EPOCH + timedelta(microseconds=found) == when
    assert moment(when.isoformat(" ").replace("+00:00", "z"), "at") == found


@given(st.integers(EARLIEST, LATEST))
def test_a_moment_is_written_in_utc(at: int) -> None:
    assert timestamp(at).endswith("Z")
    assert moment(timestamp(at), "at") == at


def test_digits_beyond_microseconds_are_ignored() -> None:
    assert moment("1970-01-01T00:00:00.1234567Z", "at") == 123_456
    assert moment("1969-12-31T23:59:59Z", "at") == -1_000_000


def test_the_clock_is_that_of_the_system() -> None:
    assert abs(datetime.now(UTC) - (EPOCH + timedelta(microseconds=now()))) < timedelta(seconds=5)


@pytest.mark.parametrize(
    "text",
    [
        *("", "2030-01-31", "2030-01-31T08:30:00", "2030-01-31T08:30Z", "2030-01-31T24:00:00Z"),
        *("\u0662030-01-31T08:30:00Z", "1700000000"),
        *(1_700_000_000, 1.5, True, [], {}),
    ],
)
def test_nothing_else_is_a_timestamp(text: object) -> None:
    with pytest.raises(Invalid, match="2030-01-31T08:30:00Z"):
        moment(text, "at")


@pytest.mark.parametrize(
    "text",
    ["2030-02-30T08:30:00Z", "2030-01-31T08:30:60Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"],
)
def test_a_timestamp_outside_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="an existing date in the years 1 to 9999"):
        moment(text, "at")
