"""A row as it came: where it stands, and its value or what is wrong with it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any, NamedTuple

from serving.errors import Invalid, Malformed, ServiceError
from serving.json_body import check_containers, parse_exact
from serving.settings import Settings

MAX_CONTAINERS = 4000
"""Lists and objects in one row: 256 such rows take the memory that one request may."""
MAX_DEPTH = 200
"""Of a row; metadata may be less deep. JSON deeper than this is an attack."""
COMPARED, COMPARED_LENGTH = 100, 40
"""Names that a wrong name is compared with, and their characters: a comparison takes the square of the length."""
_WITHIN = re.compile(r": line \d+ column \d+ \(char (\d+)\)$")
"""Where the standard library sees an error: its lines are not those of the upload."""


class Row(NamedTuple):
    """One document as it came, and what to call it in an error: `documents.3`, `line 4`.

    A row that can't be read has a `ServiceError` for its value.
    """

    place: str
    value: Any
    text_field: str = "text"
    """What the upload calls it."""
    id_field: str = "id"
    hint: str = ""
    """What to say beside that it has no text."""


def listed(names: Iterable[str]) -> str:
    """Quote the first of `names`, as many as a message has room for."""
    return ", ".join(repr(name[:300]) for name in islice(names, 100))[:300]


def absent(wanted: str, names: Collection[str], what: str, option: str = "text_column") -> str:
    """Say that no field of an upload is called `wanted`, which fields there are, and which `option` names another."""
    known = {name.casefold(): name for name in islice(names, COMPARED)}
    short = [folded for folded in known if len(folded) <= COMPARED_LENGTH]
    near = difflib.get_close_matches(wanted.casefold()[:COMPARED_LENGTH], short, 1)
    said = f"there is no {what} {wanted!r}, only {listed(names) or 'none'}."
    if near:
        said += f" Did you mean {known[near[0]]!r}?"
    name = known[near[0]] if near else "NAME"
    return f"{said} Name it by ?{option}={name} (--{option.replace('_', '-')} {name})"


def row_bytes(settings: Settings) -> int:
    """Of one row, at most: what it may hold, two thirds of it escaped (JSON writes `é` in six bytes, UTF-8 in two)."""
    return 3 * (settings.max_text_bytes + settings.max_metadata_bytes)


def json_value(raw: bytes) -> Any:
    """The value of one row of JSON, or the error that it is."""
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
    """The text of one line, or the error that names the byte which is none, the first being 1."""
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
