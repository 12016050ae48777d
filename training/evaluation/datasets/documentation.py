"""A retrieval collection without download and judges: CPython's documentation, with section summaries as queries."""

from __future__ import annotations

from collections.abc import Iterable

from models.python_docs import Section, sections
from training.data.corpus import split_summary
from training.evaluation.beir import Collection

NAME = "python-docs"


def collection() -> Collection:
    """Return the collection of the running interpreter. Other versions of Python have other documentation."""
    return collection_of(sections())


def collection_of(documented: Iterable[Section]) -> Collection:
    """Make each section's first sentence the query for the rest.

    Sections with the same first sentence all answer it.

    A section whose first sentence is not clean, or with little more text, has no query and stays whole among the
    documents. This is known-item search, an inverse cloze task. Nobody judged whether other sections answer too.
    """
    documents: dict[str, str] = {}
    queries: dict[str, str] = {}
    judgements: dict[str, dict[str, int]] = {}
    by_text: dict[str, str] = {}
    for number, section in enumerate(documented):
        first, documents[str(number)] = split_summary(section)
        if first is not None:
            query = by_text.setdefault(first, f"q{number}")
            queries[query] = first
            judgements.setdefault(query, {})[str(number)] = 1
    return Collection(documents, queries, judgements)
