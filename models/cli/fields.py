"""Types of dataclass fields: conversion of command-line text and checks of JSON values."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from models.errors import none_of

TRUTH = {"true": True, "false": False}


def field_types(cls: type[Any]) -> dict[str, Any]:
    """Return the type of each field of a dataclass, by name."""
    hints = _type_hints(cls)  # type: ignore[arg-type] # mypy does not see that every class is hashable
    return {field.name: hints[field.name] for field in fields(cls)}


@cache
def _type_hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def parse(text: str, kind: Any) -> Any:
    """Convert text to the type `kind`: bool, int, float, str, literal, optional (`none`) or tuple (`a,b,c`).

    Raises:
        ValueError: the text does not fit the type; the message names the type.
    """
    if get_origin(kind) is tuple:
        return tuple(parse(part, get_args(kind)[0]) for part in text.split(",") if part)
    if (inner := _optional(kind)) is not None:
        return None if text.lower() == "none" else parse(text, inner)
    read: dict[Any, Callable[[str], Any]] = {bool: lambda text: TRUTH.get(text.lower(), text), int: int, float: float}
    try:
        value = read.get(kind, str)(text)
    except ValueError:
        raise ValueError(f"expected {describe_type(kind)}, got {text!r}") from None
    return check_value(value, kind)


def parse_settings(texts: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the texts `key=value` of `--set` options. Return the values by key, converted to the types in `known`.

    Raises:
        ValueError: a text is not `key=value`, a key is not in `known`, or a value has the wrong type; the message
            quotes the option.
    """
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text}: expected key=value")
        if key not in known:
            raise ValueError(f"--set {text}: {none_of(key, sorted(known))}")
        try:
            values[key] = parse(value, known[key])
        except ValueError as error:
            raise ValueError(f"--set {text}: {error}") from error
    return values


def check_value(value: Any, kind: Any) -> Any:
    """Check that a JSON value fits the type `kind`, and return it in this type, for example a list as a tuple.

    Raises:
        ValueError: the value does not fit the type; the message names the type.
    """
    if get_origin(kind) is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(check_value(part, get_args(kind)[0]) for part in value)
    if (inner := _optional(kind)) is not None:
        return None if value is None else check_value(value, inner)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind is int and type(value) is int and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"expected {describe_type(kind)} of at most 63 bits, got one of {value.bit_length()} bits")
    if kind in (bool, int, str) and type(value) is kind:
        return value
    raise ValueError(f"expected {describe_type(kind)}, got {value!r}")


def check_named(name: str, value: Any, kind: Any) -> Any:
    """Check that a JSON value fits the type `kind`, and return it in this type.

    Raises:
        ValueError: the value does not fit the type `kind`; the message begins with `name`.
    """
    try:
        return check_value(value, kind)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def check_finite(values: Any) -> None:
    """Check that every float field of a dataclass is finite.

    Checks of bounds are not enough, because NaN may pass them or cause a misleading error.

    Raises:
        ValueError: a field is infinite or NaN; the message names it.
    """
    for field in fields(values):
        value = getattr(values, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name}: {value} is not a finite number")


def describe_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(option) for option in get_args(kind))
    if get_origin(kind) is tuple:
        return f"a list whose elements are {describe_type(get_args(kind)[0])}"
    if (inner := _optional(kind)) is not None:
        return f"{describe_type(inner)} or none"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]


def _optional(kind: Any) -> Any | None:
    """Return the type X if `kind` is `X | None`, and None for any other type."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(inner for inner in get_args(kind) if inner is not types.NoneType)
    return None
