"""Rows of a corpus in Milvus: one row for each passage, with its text.

A row's primary key consists of the id of its document and the number of the passage. A document therefore replaces an
earlier document of the same id. The first row of a document has its metadata. All rows have the fields that filters
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
from pymilvus import CollectionSchema, DataType, Function, FunctionType, MilvusClient

from models.runtimes.base import Floats
from serving.corpora.stores import analysis
from serving.corpora.stores.analysis import tokenizers
from serving.corpora.stores.milvus.expressions import MAX_TERMS, TERM_LENGTH, derived
from serving.corpora.stores.queries import Rules, parse
from serving.corpora.values import Content, Document, Passage, Span, Stemming
from serving.errors import Invalid

MAX_BYTES = 65_535
"""Maximum bytes of a string, and of metadata as JSON, in Milvus."""
MAX_ID = 512
NEVER = 2**63 - 1
"""Value of `expires_at` in rows of a document that never expires."""
K1, B = 1.2, 0.75
"""Parameters of BM25, as in FTS5."""
VECTOR, WORDS, SPARSE = "vector", "words", "sparse"
HEAD = ("id", "document", "passage", "passages", "start", "end")
WHOLE = (*HEAD, "text", "metadata", "expires_at")
UNREAD = ("document", "metadata", "expires_at")
COPIED = (*WHOLE, WORDS, "terms", "ranges")
"""All fields except the two vectors. Milvus computes the sparse vector itself."""
Row = dict[str, Any]


def schema(dim: int) -> CollectionSchema:
    """Return the schema of a collection for the rows of a corpus."""
    made = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description="a corpus of Isosphere")
    made.add_field("id", DataType.VARCHAR, is_primary=True, max_length=MAX_ID + 16)
    made.add_field("document", DataType.VARCHAR, max_length=MAX_ID)
    for name in ("passage", "passages", "start", "end"):
        made.add_field(name, DataType.INT64)
    made.add_field("text", DataType.VARCHAR, max_length=MAX_BYTES)
    made.add_field("metadata", DataType.JSON)
    made.add_field("expires_at", DataType.INT64)
    made.add_field(
        "terms", DataType.ARRAY, element_type=DataType.VARCHAR, max_capacity=MAX_TERMS, max_length=TERM_LENGTH
    )
    made.add_field("ranges", DataType.JSON)
    made.add_field(WORDS, DataType.VARCHAR, max_length=MAX_BYTES, enable_analyzer=True)
    made.add_field(SPARSE, DataType.SPARSE_FLOAT_VECTOR)
    made.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=dim)
    made.add_function(Function("bm25", FunctionType.BM25, input_field_names=[WORDS], output_field_names=[SPARSE]))
    return made


def rows(content: Content, stemming: Stemming) -> Iterator[Row]:
    """Yield the rows of the documents in `content`.

    Raises:
        Invalid: a document exceeds the limits of Milvus.
    """
    vectors = iter(content.vectors)
    for i, document in enumerate(content.documents):
        spans = content.spans[i] if content.spans else None
        try:
            yield from _rows(document, spans, vectors, stemming)
        except Invalid as error:
            raise Invalid(error.message, field=f"documents.{i}") from None


def _rows(
    document: Document, spans: Sequence[Span] | None, vectors: Iterator[Floats], stemming: Stemming
) -> Iterator[Row]:
    """Yield a row for each passage of a document. Without `spans`, the whole text is one passage.

    Passages need not cover the whole text. So that no text is lost, a row also stores the text between its passage and
    the next passage, or the end of the text. The first row also stores the text before its passage.

    Raises:
        Invalid: a passage or the metadata exceed the limits of Milvus.
    """
    metadata, text = dict(document.metadata), document.text
    terms, ranges = _derived(metadata)
    cut = spans or [Span(0, len(text))]
    starts = [0, *(span.start for span in cut[1:]), len(text)]
    for number, (span, (start, following)) in enumerate(zip(cut, pairwise(starts), strict=True)):
        part = text[start : max(span.end, following)]
        if (size := len(part.encode())) > MAX_BYTES:
            raise Invalid(f"a passage has {size} bytes, but Milvus stores only {MAX_BYTES}: upload with ?chunk_tokens=")
        yield {
            "id": key(document.id, number),
            "document": document.id,
            "passage": number,
            "passages": len(cut),
            "start": -1 if spans is None else span.start,
            "end": -1 if spans is None else span.end,
            "text": part,
            "metadata": {} if number else metadata,
            "expires_at": _expiry(document),
            "terms": terms,
            "ranges": ranges,
            WORDS: _words(text[span.start : span.end], stemming),
            VECTOR: next(vectors),
        }


def described(row: Mapping[str, Any], document: Document) -> Row:
    """Return `row` with the metadata and the expiry of `document`.

    Raises:
        Invalid: the metadata exceed the limits of Milvus.
    """
    terms, ranges = _derived(document.metadata)
    metadata = {} if row["passage"] else document.metadata
    return {**row, "metadata": metadata, "expires_at": _expiry(document), "terms": terms, "ranges": ranges}


def _expiry(document: Document) -> int:
    return NEVER if document.expires_at is None else document.expires_at


def unread(row: Mapping[str, Any]) -> Document:
    """Build a document from its first row, but with an empty text, because other rows may have the rest of the text."""
    expires_at = None if row["expires_at"] == NEVER else int(row["expires_at"])
    return Document(row["document"], "", row["metadata"], expires_at=expires_at)


def _derived(metadata: Mapping[str, Any]) -> tuple[list[str], dict[str, float | str]]:
    """Return the derived fields `terms` and `ranges` of metadata.

    Raises:
        Invalid: the metadata or the derived fields exceed the limits of Milvus.
    """
    if len(orjson.dumps(metadata)) > MAX_BYTES:
        raise Invalid(f"the metadata have more than the {MAX_BYTES} bytes that Milvus stores")
    return derived(metadata)


def documents(found: Iterable[Mapping[str, Any]]) -> dict[str, Document]:
    """Return documents by id, assembled from all their rows. The rows must have the fields `WHOLE`."""
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(found, key=lambda row: row["passage"]):
        parts.setdefault(row["document"], []).append(row)
    return {name: _document(own) for name, own in parts.items()}


def _document(own: Sequence[Mapping[str, Any]]) -> Document:
    starts = [0, *(row["start"] for row in own[1:])]
    texts = [row["text"][: end - start] for row, (start, end) in zip(own, pairwise(starts), strict=False)]
    return unread(own[0])._replace(text="".join([*texts, own[-1]["text"]]))


def passage(row: Mapping[str, Any], document: Document) -> Passage:
    return Passage(document, None if row["start"] < 0 else Span(row["start"], row["end"]))


def passage_text(row: Mapping[str, Any]) -> str:
    """Return only the text of the row's passage, which the encoder embeds.

    The field `text` of the row may also contain text of the document before or after the passage.
    """
    if row["start"] < 0:
        return str(row["text"])
    begin = row["start"] if row["passage"] == 0 else 0
    return str(row["text"][begin : begin + row["end"] - row["start"]])


def key(document: str, passage: int) -> str:
    """Return the primary key of a row. Rows are listed in the order of these keys."""
    return f"{document}#{passage:06d}"


def number(key: str) -> int:
    """Return a number that stands for a primary key in rankings. It is a hash of the key."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) >> 1


def vector(row: Mapping[str, Any]) -> Floats:
    return np.asarray(row[VECTOR], dtype=np.float32)


def asked(query: str, stemming: Stemming) -> tuple[str, list[str]]:
    """Return the text of a BM25 query, and a LIKE pattern on the field `words` for each phrase that must occur."""
    parsed = parse(query, Rules(stemming))
    terms = [_tokens(" ".join(term), stemming) for term in parsed.terms]
    phrases = [f"% {' '.join(_tokens(' '.join(phrase), stemming))} %" for phrase in parsed.phrases]
    return " ".join(token for term in terms for token in term), phrases


def _words(text: str, stemming: Stemming) -> str:
    """Return the words of a passage, with spaces between them. Words beyond Milvus's limit are cut off."""
    joined = f" {' '.join(_tokens(text, stemming))} "
    return joined if len(joined) <= MAX_BYTES else joined[: joined.rindex(" ", 0, MAX_BYTES) + 1]


def _tokens(text: str, stemming: Stemming) -> list[str]:
    """Return the words of a text by the rules of local word search, in a form that no analyzer of Milvus changes."""
    return [_plain(token) for token in tokenizers[stemming].words(analysis.indexed(text))]


def _plain(token: str) -> str:
    if token.isascii() and token.isalnum():
        return token[:64]
    return f"x{blake2b(token.encode(), digest_size=8).hexdigest()}"
