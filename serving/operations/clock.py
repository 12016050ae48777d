"""Times as integers, in microseconds since 1970 in UTC. They come from the system clock or from RFC 3339 timestamps."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from time import time_ns

from serving.errors import Invalid

_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
EARLIEST, LATEST = ((year.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND for year in (datetime.min, datetime.max))
"""The first and the last time that RFC 3339 can express, in the years 1 and 9999."""


def now() -> int:
    """Return the current time in microseconds since 1970."""
    return time_ns() // 1000


def moment(text: object, field: str) -> int:
    """Parse an RFC 3339 timestamp. Return its time in microseconds since 1970.

    Digits beyond microseconds are ignored.

    Raises:
        Invalid: `text` is not a timestamp with a time of day and an offset, or is outside the years 1 to 9999 in UTC.
    """
    wanted = "a timestamp with a time and an offset, such as 2030-01-31T08:30:00Z"
    if isinstance(text, str) and _TIMESTAMP.fullmatch(text):
        wanted = "an existing date in the years 1 to 9999 in UTC, with seconds from 00 to 59"
        try:
            found = (datetime.fromisoformat(text.upper()) - _EPOCH) // _MICROSECOND
        except ValueError:  # the date does not exist, such as 30 February
            found = LATEST + 1
        if EARLIEST <= found <= LATEST:
            return found
    raise Invalid(f"must be {wanted}", field=field)


def timestamp(moment: int) -> str:
    """Return the RFC 3339 timestamp of a time, in UTC."""
    return (_EPOCH + moment * _MICROSECOND).isoformat().replace("+00:00", "Z")
