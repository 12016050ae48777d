"""Rows of an upload. A row has its place in the upload, and a value or an error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any, NamedTuple

from serving.errors import Invalid, Malformed, ServiceError
from serving.operations.json_body import check_containers, levels, parse_exact
from serving.settings import Settings

VECTOR = "vector"
EXPIRES_AT = "expires_at"
MAX_CONTAINERS = 4000
"""Maximum number of lists and objects in a row. A job processes blocks of 256 rows. A block therefore has at most about
as many lists and objects as a request may have (`json_body.MAX_CONTAINERS`)."""
MAX_DEPTH = 200
"""Maximum nesting of a row. Metadata have a lower limit, so only an attack has deeper nesting."""
COMPARED, COMPARED_LENGTH = 100, 40
"""Maximum number of names with which a wrong name is compared, and maximum length of these names. The time of a
comparison is quadratic in the length."""
CHARSET_ADVICE = ": save the file as UTF-8, or name its charset"
_WITHIN = re.compile(r": line \d+ column \d+ \(char (\d+)\)$")
"""Pattern of the position in an error message of the standard library. The line number in the message is counted within
the row, so it is not the line number in the upload."""


class Row(NamedTuple):
    """A document of an upload: its unchecked `value`, and its `place` for error messages.

    Places are, for example, `documents.3` or `line 4`. If the row can't be read, `value` is a `ServiceError` instead.
    """

    place: str
    value: Any
    text_field: str = "text"
    """Name of the upload's field that contains the text."""
    id_field: str = "id"
    hint: str = ""
    """Addition to the error for a missing text."""


def listed(names: Iterable[str]) -> str:
    """Return a text for messages, which lists the first `names` in quotes and has at most 300 characters."""
    return ", ".join(repr(name[:300]) for name in islice(names, 100))[:300]


def absent(wanted: str, names: Collection[str], what: str, option: str = "text_column") -> str:
    """Return a message that there is no field or column `wanted`. `what` is `field` or `column`.

    The message lists `names`, suggests a similar name, and names the `option` that selects another field or column.
    """
    known = {name.casefold(): name for name in islice(names, COMPARED)}
    short = [folded for folded in known if len(folded) <= COMPARED_LENGTH]
    near = difflib.get_close_matches(wanted.casefold()[:COMPARED_LENGTH], short, 1)
    said = f"there is no {what} {wanted!r}, only {listed(names) or 'none'}."
    if near:
        said += f" Did you mean {known[near[0]]!r}?"
    name = known[near[0]] if near else "NAME"
    return f"{said} Select it by ?{option}={name} (--{option.replace('_', '-')} {name})"


def row_bytes(settings: Settings) -> int:
    """Return the maximum number of bytes of one row.

    This is three times the sum of the limits on text and metadata. These limits count bytes of UTF-8, but JSON may
    escape a character of two bytes, such as `é`, in six bytes.
    """
    return 3 * (settings.max_text_bytes + settings.max_metadata_bytes)


def json_value(raw: bytes) -> Any:
    """Parse one row of JSON. Return its value or its error."""
    try:
        check_containers(raw, MAX_CONTAINERS, of="document")
        value = parse_exact(raw)
    except Malformed as error:
        text = utf8(raw)
        if not isinstance(text, str):
            return text
        return Malformed(_WITHIN.sub(lambda place: f" at character {int(place[1]) + 1}", error.message))
    except ServiceError as error:
        return error
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deep(value):
        return Invalid(f"nested deeper than {MAX_DEPTH}")
    return value


def utf8(raw: bytes, advice: str = "") -> str | Malformed:
    """Decode one line. Return its text, or an error with the position, counted from 1, of the first invalid byte.

    `advice` is the end of the error's message.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return Malformed(f"not UTF-8: byte {error.start + 1} is 0x{raw[error.start]:02x}{advice}")


def _is_deep(value: Any) -> bool:
    below = next(islice(levels(value), MAX_DEPTH, None), [])
    return any(isinstance(one, dict | list) for one in below)
