"""The default corpus: the documentation that every CPython carries, as sentences or as passages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from models import python_docs
from models.python_docs import Section
from training.corpus.sentences import cut, is_clean, split

LEAST_WORDS = 10
"""Words behind a summary that can be asked for by it."""


def sentences() -> Iterator[str]:
    """Yield the clean English sentences of all sections."""
    for section in python_docs.sections():
        yield from split(section.text)


def passages() -> Iterator[str]:
    """Yield of each section a line with its name, and one with its text.

    A summary is left out: the collection `python-docs` asks for the rest by it, and nobody is to train on its queries.
    """
    for section in python_docs.sections():
        named = section.name if section.module == python_docs.TOPICS else f"{section.module} {section.name}"
        _, text = summary(section)
        yield f"{named.strip()}\n{' '.join(text.split())}"


def summary(section: Section) -> tuple[str | None, str]:
    """Split off the first sentence of a section; None, and the whole text, if it is not clean or little follows it."""
    first, *rest = [sentence for part in re.split(r"\n\s*\n", section.text) for sentence in cut(part)]
    behind = " ".join(rest)
    return (first, behind) if is_clean(first) and len(behind.split()) >= LEAST_WORDS else (None, section.text)
