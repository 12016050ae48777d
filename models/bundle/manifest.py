"""Validation of the fields of a bundle's `manifest.json`."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, TypeGuard


def check(fields: Mapping[str, Any]) -> None:
    """Check the types and names of all fields of a parsed manifest.

    Raises:
        ValueError: a field has a wrong type, or contains an invalid file name; the message names the field.
    """
    for name, (fits, kind) in KINDS.items():
        if not fits(fields[name]):
            raise ValueError(f"{name} must be {kind}")
    if _commands_a_terminal(fields["name"]):
        raise ValueError(f"name must be one line of plain text, not {fields['name']!r}")
    for path in fields["files"]:
        if {"", ".", ".."}.intersection(path.split("/")) or "\\" in path or _commands_a_terminal(path):
            raise ValueError(f"{path!r} leaves the folder, or is no plain name of a file in it")
        if above := fields["files"].keys() & set(map(str, PurePosixPath(path).parents)):
            raise ValueError(f"{min(above)!r} can't be a file and the folder of {path!r}")


def _commands_a_terminal(name: str) -> bool:
    """Return whether a name has control characters or surrogates.

    Names are printed, and a terminal would interpret control characters.
    """
    return any(unicodedata.category(character) in {"Cc", "Cs"} for character in name)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _number(value: object) -> bool:
    """Return whether the value is a finite number. Python's JSON reader also accepts NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max


def _object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _texts(value: object) -> bool:
    return _object(value) and all(map(_text, value.values()))


def _numbers(value: object) -> bool:
    return _object(value) and all(map(_number, value.values()))


def _transform(value: object) -> bool:
    return _object(value) and _text(value.get("kind"))


def _adapter(value: object) -> bool:
    return (
        _object(value)
        and all(_text(value.get(name)) for name in ("base", "base_sha256", "sha256"))
        and _count(value.get("merge_version"))
    )


def _golden(value: object) -> bool:
    return isinstance(value, list) and all(map(_golden_vector, value))


def _golden_vector(value: object) -> bool:
    if not _object(value) or value.keys() != {"text", "vector"}:
        return False
    vector = value["vector"]
    return _text(value["text"]) and isinstance(vector, list) and all(map(_number, vector))


def _or_null(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


KINDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "name": (_text, "text"),
    "objective": (_or_null(_text), "text or null"),
    "backbone": (_text, "text"),
    "dim": (_count, "a positive integer"),
    "max_length": (_count, "a positive integer"),
    "pooling": (_text, "text"),
    "prompts": (_texts, "an object of names and texts"),
    "transform": (_or_null(_transform), "an object or null, its kind a text"),
    "files": (_texts, "an object of names and hashes"),
    "fingerprint": (_text, "text"),
    "run": (_or_null(_object), "an object or null"),
    "scores": (_or_null(_numbers), "an object of names and finite numbers, or null"),
    "golden": (_golden, "a list of objects, each a text and its vector"),
    "adapter": (
        _or_null(_adapter),
        "an object or null, its base, base_sha256 and sha256 texts, its merge_version a number",
    ),
}
