"""Prompts for queries and documents, under the names that sentence-transformers uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

NO_PROMPTS: Mapping[str, str] = MappingProxyType({})
QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")


def nonempty(prompts: Mapping[str, str]) -> dict[str, str]:
    return {name: prompt for name, prompt in prompts.items() if prompt}


def prompt_for(prompts: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the first non-empty prompt, in the order of `names`.

    Return "" if all prompts with these names are empty. Return None if `prompts` has none of these names.

    Empty prompts are skipped, because sentence-transformers may write an empty prompt `document` beside `passage`.
    """
    own = [prompts[name] for name in names if name in prompts]
    return next((prompt for prompt in own if prompt), own[0] if own else None)
