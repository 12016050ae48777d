"""What stands before a text, by what it is embedded for: names that sentence-transformers' `encode_query` and
`encode_document` look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

NO_PROMPTS: Mapping[str, str] = MappingProxyType({})
QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")


def of_role(prompts: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The first of the `prompts` that has one of the `names`, None where none has."""
    return next((prompts[name] for name in names if name in prompts), None)
