"""Prompts for queries and documents, under the names that sentence-transformers uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

NO_PROMPTS: Mapping[str, str] = MappingProxyType({})
QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")


def nonempty(prompts: Mapping[str, str]) -> dict[str, str]:
    """Return the prompts that are not empty."""
    return {name: prompt for name, prompt in prompts.items() if prompt}


def prompt_for(prompts: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the first non-empty prompt among `names`. If all are empty, return "". If there is none, return None.

    Empty prompts are skipped, because sentence-transformers writes an empty `document` beside a `passage`.
    """
    own = [prompts[name] for name in names if name in prompts]
    return next((prompt for prompt in own if prompt), own[0] if own else None)
