"""Retrieval collections in BEIR's layout: documents, queries, and human relevance judgements."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.bundle.disk import replacing
from training.data import strict_json
from training.evaluation.pairs import DataError, lines

FOLDER = "retrieval"
"""Name of the subfolder of evaluation data that contains the collections."""
TEST = "test"
"""Default split, for names that contain no split."""

CORPUS = "corpus.jsonl"
HEADER = "query-id\tcorpus-id\tscore"
LONGEST_GRADE = 9
"""Maximum number of digits in a grade. Sums of larger grades could overflow."""


@dataclass(frozen=True)
class Collection:
    """Documents and queries by id, in file order, and relevance grades by query and document."""

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    """Queries that have a judgement."""
    judgements: Mapping[str, Mapping[str, int]]
    """Grades by query and document. A grade above 0 means relevant. Higher grades mean more relevant."""

    @property
    def missing(self) -> int:
        """Return the number of judgements whose relevant document is missing from the collection.

        No search can find these documents.
        """
        return sum(
            grade > 0 and document not in self.documents
            for grades in self.judgements.values()
            for document, grade in grades.items()
        )


def collections(data: Path) -> dict[str, Path]:
    """Return the folder of each collection by name.

    If `data` contains a file `corpus.jsonl`, `data` itself is the only collection. Otherwise the folders are
    `data/retrieval/<name>`. No file is read.
    """
    alone = [data.resolve() / CORPUS] if (data / CORPUS).is_file() else []
    return {file.parent.name: file.parent for file in alone or sorted((data / FOLDER).glob(f"*/{CORPUS}"))}


def part(name: str) -> tuple[str, str]:
    """Parse `name` into the names of a collection and of one of its splits.

    `scifact:train` is the split `train` of the collection `scifact`. Without a colon, the split is `test`.
    """
    collection, _, split = name.partition(":")
    return collection, split or TEST


def files(split: str) -> tuple[str, str, str]:
    """Return three paths, relative to the collection's folder: documents, queries, and the judgements of a split."""
    return CORPUS, "queries.jsonl", f"qrels/{split}.tsv"


def find(data: Path, name: str) -> Collection:
    """Load the collection `name` from the folder `data`. The name may contain a split, such as `scifact:train`.

    Raises:
        DataError: the collection is missing or broken.
    """
    collection, split = part(name)
    known = collections(data)
    if collection not in known:
        there = f"there is {', '.join(known)}" if known else "there is none"
        raise DataError(f"{data / FOLDER}: no collection {collection!r} in BEIR's layout; {there}")
    return load(known[collection], split)


def load(folder: Path, split: str = TEST) -> Collection:
    """Load a split of the collection in `folder`.

    A document's text is its title, a space, and its body.

    Judgements of documents that the corpus lacks are kept, as in trec_eval. No search can find these documents.

    Raises:
        DataError: a file is missing or a row is broken; an id is missing or occurs twice; a document is judged twice
            for the same query; a judged query is unknown; or all judged documents are unknown.
    """
    corpus, asked, judged = (folder / file for file in files(split))
    documents = {}
    for identity, row, where in _rows(corpus):
        title = "" if row.get("title") is None else _string(row, "title", where)
        documents[identity] = f"{title} {_string(row, 'text', where)}".strip()
    queries = {identity: _string(row, "text", where) for identity, row, where in _rows(asked)}
    judgements: dict[str, dict[str, int]] = {}
    for query, document, grade, where in _judgements(judged):
        if query not in queries:
            raise DataError(f"{where}: no query has the id {query!r}")
        grades = judgements.setdefault(query, {})
        if document in grades:
            raise DataError(f"{where}: document {document!r} is judged twice for query {query!r}")
        grades[document] = grade
    if not any(document in documents for grades in judgements.values() for document in grades):
        raise DataError(f"{judged}: none of the judged ids is a document of {corpus}, for example {document!r}")
    return Collection(documents, {query: text for query, text in queries.items() if query in judgements}, judgements)


def save(collection: Collection, folder: Path, split: str = TEST) -> None:
    """Write the files that `load` reads. Each file is written atomically, and the judgements are written last.

    Raises:
        OSError: a file can't be written.
    """
    documents, queries = (
        "".join(json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items())
        for texts in (collection.documents, collection.queries)
    )
    rows = [f"{query}\t{key}\t{n}\n" for query, grades in collection.judgements.items() for key, n in grades.items()]
    for name, content in zip(files(split), (documents, queries, f"{HEADER}\n{''.join(rows)}"), strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder / name) as beside:
            beside.write_text(content, encoding="utf-8", newline="")


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the id, the fields and the position (file and line) of each object in a JSON Lines file."""
    seen = set()
    for where, row in strict_json.rows(lines(file), file, DataError):
        identity = _string(row, "_id", where)
        if not identity:
            raise DataError(f"{where}: the _id is empty")
        if identity in seen:
            raise DataError(f"{where}: the _id {identity!r} occurs twice")
        seen.add(identity)
        yield identity, row, where


def _string(row: Mapping[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str):
        raise DataError(f"{where}: {field} is missing or not a string")
    return value


def _judgements(file: Path) -> Iterator[tuple[str, str, int, str]]:
    header, *rows = lines(file)
    if header.rstrip("\r") != HEADER:
        raise DataError(f"{file}:1: expected the header {' '.join(HEADER.split())}, separated by tabs")
    if not rows:
        raise DataError(f"{file}: no judgements below the header")
    for number, line in enumerate(rows, start=2):
        where = f"{file}:{number}"
        columns = line.rstrip("\r").split("\t")
        if len(columns) != 3:
            raise DataError(f"{where}: {len(columns)} columns separated by tabs, expected 3")
        query, document, grade = columns
        try:
            score = int(grade[:LONGEST_GRADE])
        except ValueError:
            raise DataError(f"{where}: {grade[:20]!r} is not a score, expected a whole number") from None
        if len(grade) > LONGEST_GRADE:
            raise DataError(f"{where}: a score of {len(grade)} digits, expected {LONGEST_GRADE} at most")
        yield query, document, score, where
