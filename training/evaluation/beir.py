"""Retrieval collections in BEIR's layout: documents, queries, and people's judgements of which answers which."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.evaluation.pairs import DataError, lines

HEADER = "query-id\tcorpus-id\tscore"


@dataclass(frozen=True)
class Collection:
    """Texts by id, in the order of the files, and the grades of the documents judged for each query."""

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    """Only those that have a judgement."""
    judgements: Mapping[str, Mapping[str, int]]
    """By query and document. Above 0 is relevant, and more so the higher."""


def load(folder: Path, split: str = "test") -> Collection:
    """What `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv` hold; a document is its title, a space, its text.

    Raises:
        DataError: a file is missing or a row is broken; an id is missing, comes twice, or is judged but unknown.
    """
    documents = {
        identity: f"{_string(row, 'title', where, default='')} {_string(row, 'text', where)}".strip()
        for identity, row, where in _rows(folder / "corpus.jsonl")
    }
    queries = {identity: _string(row, "text", where) for identity, row, where in _rows(folder / "queries.jsonl")}
    judgements: dict[str, dict[str, int]] = {}
    for query, document, grade, where in _judgements(folder / "qrels" / f"{split}.tsv"):
        for kind, identity, known in (("query", query, queries), ("document", document, documents)):
            if identity not in known:
                raise DataError(f"{where}: no {kind} has the id {identity!r}")
        grades = judgements.setdefault(query, {})
        if document in grades:
            raise DataError(f"{where}: document {document!r} is judged twice for query {query!r}")
        grades[document] = grade
    return Collection(documents, {query: text for query, text in queries.items() if query in judgements}, judgements)


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Id, fields and place of each object."""
    seen = set()
    for number, line in enumerate(lines(file), start=1):
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not JSON: {error.msg} in column {error.colno}") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected a JSON object")
        identity = _string(row, "_id", where)
        if not identity:
            raise DataError(f"{where}: an empty _id")
        if identity in seen:
            raise DataError(f"{where}: the _id {identity!r} comes twice")
        seen.add(identity)
        yield identity, row, where


def _string(row: Mapping[str, Any], field: str, where: str, *, default: str | None = None) -> str:
    value = row.get(field, default)
    if not isinstance(value, str):
        raise DataError(f"{where}: {field} is missing or no string")
    return value


def _judgements(file: Path) -> Iterator[tuple[str, str, int, str]]:
    header, *rows = lines(file)
    if header.rstrip("\r") != HEADER:
        raise DataError(f"{file}:1: expected the header {' '.join(HEADER.split())}, with tabs between")
    if not rows:
        raise DataError(f"{file}: no judgements below the header")
    for number, line in enumerate(rows, start=2):
        where = f"{file}:{number}"
        columns = line.rstrip("\r").split("\t")
        if len(columns) != 3:
            raise DataError(f"{where}: {len(columns)} columns with tabs between, expected 3")
        query, document, grade = columns
        try:
            yield query, document, int(grade), where
        except ValueError:
            raise DataError(f"{where}: {grade!r} is not a score, expected a whole number") from None
