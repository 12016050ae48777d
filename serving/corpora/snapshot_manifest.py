"""What a snapshot says of itself."""

from __future__ import annotations

from types import UnionType
from typing import Any

import orjson

from serving.errors import Invalid

MANIFEST = "manifest.json"
FORMAT = 1
_FACTS: dict[str, type | UnionType] = {
    "corpus": str,
    "created": int | float,
    "documents": int,
    "passages": int,
    "fingerprint": str | None,
    "content": dict,
}
"""Beside the format."""


def read_manifest(raw: bytes) -> dict[str, Any]:
    """All that a manifest says; `content` holds the `bytes` and `sha256` of the corpus.

    Raises:
        Invalid: it is of another format, or lacks something.
    """
    try:
        described = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"{MANIFEST} is not JSON", field="snapshot") from error
    if (format := _facts(described, {"format": int})["format"]) != FORMAT:
        raise Invalid(f"of format {format}, this version reads {FORMAT}", field="snapshot")
    whole = _facts(described, _FACTS)
    return whole | {"content": _facts(whole["content"], {"bytes": int, "sha256": str})}


def _facts(described: Any, kinds: dict[str, type | UnionType]) -> dict[str, Any]:
    for name, kind in kinds.items():
        if not isinstance(described, dict) or name not in described or not _is(described[name], kind):
            raise Invalid(
                f"{MANIFEST} does not describe a snapshot: its {name!r} is missing or wrong", field="snapshot"
            )
    return {name: described[name] for name in kinds}


def _is(value: Any, kind: type | UnionType) -> bool:
    """A whole number is one that can be a count, and that the progress of a job can be kept with."""
    if kind is int:
        return type(value) is int and 0 <= value < 2**63
    return isinstance(value, kind)
