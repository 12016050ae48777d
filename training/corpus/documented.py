"""The default corpus: the documentation inside every CPython, as sentences or passages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from models import python_docs
from models.python_docs import Section
from training.corpus.sentences import cut, is_clean, split

LEAST_WORDS = 10
"""Minimum words after a summary that is used as a query."""


def documentation_sentences() -> Iterator[str]:
    """Yield the clean English sentences of all sections."""
    for section in python_docs.sections():
        yield from split(section.text)


def documentation_passages() -> Iterator[str]:
    """Yield for each section a line with its name and a line with its text.

    Summaries are left out. They are the queries of the collection `python-docs`, and no encoder may train on them.
    """
    for section in python_docs.sections():
        named = section.name if section.module == python_docs.TOPICS else f"{section.module} {section.name}"
        _, text = summary(section)
        yield f"{named.strip()}\n{' '.join(text.split())}"


def summary(section: Section) -> tuple[str | None, str]:
    """Split off the first sentence of a section.

    The first item is None, with the whole text, if the sentence is not clean or little follows it.
    """
    first, *rest = [sentence for part in re.split(r"\n\s*\n", section.text) for sentence in cut(part)]
    behind = " ".join(rest)
    return (first, behind) if is_clean(first) and len(behind.split()) >= LEAST_WORDS else (None, section.text)
