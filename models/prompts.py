"""What stands before a text, by what it is embedded for: the names that sentence-transformers' `encode_query` and
`encode_document` look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

NO_PROMPTS: Mapping[str, str] = MappingProxyType({})
QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")


def not_empty(prompts: Mapping[str, str]) -> dict[str, str]:
    """Those that put something before a text."""
    return {name: prompt for name, prompt in prompts.items() if prompt}


def of_role(prompts: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The first of the `prompts` under one of the `names` that puts something before a text; where there are none but
    empty ones, the empty one, and None where there are none at all.

    sentence-transformers writes an empty `document` beside a `passage`.
    """
    own = [prompts[name] for name in names if name in prompts]
    return next((prompt for prompt in own if prompt), own[0] if own else None)
