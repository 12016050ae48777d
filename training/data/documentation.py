"""A retrieval collection that needs no download and no judges: CPython's documentation, asked by its own summaries."""

from __future__ import annotations

from collections.abc import Iterable

from models.python_docs import Section, sections
from training.corpus.documented import summary
from training.evaluation.beir import Collection

NAME = "python-docs"


def collection() -> Collection:
    """Of the interpreter that runs this; another version of Python has another documentation."""
    return asked(sections())


def asked(documented: Iterable[Section]) -> Collection:
    """A section's first sentence asks for what follows it; sections that begin alike all answer.

    One that does not begin with a clean sentence, or says little more, is asked for by nobody: it stands among the
    documents whole. This is known-item search, an inverse cloze task: nobody judged that no other section answers.
    """
    documents: dict[str, str] = {}
    queries: dict[str, str] = {}
    judgements: dict[str, dict[str, int]] = {}
    by_text: dict[str, str] = {}
    for number, section in enumerate(documented):
        first, documents[str(number)] = summary(section)
        if first is not None:
            query = by_text.setdefault(first, f"q{number}")
            queries[query] = first
            judgements.setdefault(query, {})[str(number)] = 1
    return Collection(documents, queries, judgements)
