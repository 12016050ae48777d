"""Dates and times of RFC 3339 as bytes that sort chronologically."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_DATE = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)"
    r"(?:[Tt ](?P<minute>(?:[01]\d|2[0-3]):[0-5]\d)(?::(?P<second>[0-5]\d|60)(?:\.(?P<fraction>\d+))?)?"
    r"(?P<offset>[Zz]|[+-](?:[01]\d|2[0-3]):?[0-5]\d)?)?",
    re.ASCII,
)
_FIRST, _DAY = datetime(1, 1, 1, tzinfo=UTC), 86_400


def instant(text: str) -> bytes | None:
    """Return the point in time of a date or a date and time as sortable bytes; None if `text` is neither.

    A date means its midnight. Without an offset the time is UTC, as in Qdrant.
    """
    if not (found := _DATE.fullmatch(text)):
        return None
    second = int(found["second"] or 0)
    try:
        minute = datetime.fromisoformat(f"{found['day']}T{found['minute'] or '00:00'}{found['offset'] or 'Z'}".upper())
    except ValueError:  # the calendar does not have this day
        return None
    seconds = (
        _DAY + (minute - _FIRST) // timedelta(seconds=1) + second
    )  # an offset may lead to the day before the first
    # Digits of a fraction sort like the fraction if trailing zeros are removed.
    return seconds.to_bytes(6) + (found["fraction"] or "").rstrip("0").encode()
