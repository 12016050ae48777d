"""Rows of an upload: the place of each, and its value or error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any, NamedTuple

from serving.errors import Invalid, Malformed, ServiceError
from serving.operations.json_body import check_containers, parse_exact
from serving.settings import Settings

MAX_CONTAINERS = 4000
"""Maximum lists and objects in one row. 256 such rows take as much memory as one request may."""
MAX_DEPTH = 200
"""Maximum nesting of a row; the limit on metadata is lower. Deeper JSON is an attack."""
COMPARED, COMPARED_LENGTH = 100, 40
"""Names that a wrong name is compared with, and their maximum length. A comparison takes time quadratic in the
length."""
_WITHIN = re.compile(r": line \d+ column \d+ \(char (\d+)\)$")
"""Position of an error as the standard library reports it. Its line numbers are not those of the upload."""


class Row(NamedTuple):
    """A raw document, with its place for error messages: `documents.3`, `line 4`.

    The value of a row that can't be read is a `ServiceError`.
    """

    place: str
    value: Any
    text_field: str = "text"
    """The upload's name for the text."""
    id_field: str = "id"
    hint: str = ""
    """Addition to the error for a missing text."""


def listed(names: Iterable[str]) -> str:
    """Quote the first of `names`, as many as fit into a message."""
    return ", ".join(repr(name[:300]) for name in islice(names, 100))[:300]


def absent(wanted: str, names: Collection[str], what: str, option: str = "text_column") -> str:
    """Return a message that no field is called `wanted`.

    It lists the fields, and the `option` that names another one.
    """
    known = {name.casefold(): name for name in islice(names, COMPARED)}
    short = [folded for folded in known if len(folded) <= COMPARED_LENGTH]
    near = difflib.get_close_matches(wanted.casefold()[:COMPARED_LENGTH], short, 1)
    said = f"there is no {what} {wanted!r}, only {listed(names) or 'none'}."
    if near:
        said += f" Did you mean {known[near[0]]!r}?"
    name = known[near[0]] if near else "NAME"
    return f"{said} Name it by ?{option}={name} (--{option.replace('_', '-')} {name})"


def row_bytes(settings: Settings) -> int:
    """Return the maximum bytes of one row.

    This allows two thirds of it for escapes: JSON may write `é` in six bytes, UTF-8 takes two.
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


def utf8(raw: bytes) -> str | Malformed:
    """Decode one line. Return its text, or an error with the position of the first invalid byte, counted from 1."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return Malformed(f"not UTF-8: byte {error.start + 1} is 0x{raw[error.start]:02x}")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, dict | list) for one in level)
