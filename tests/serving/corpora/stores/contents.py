"""Documents to store, whose vectors follow from the encoder and the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.ports import Store
from serving.corpora.values import Change, Chunking, Content, Corpus, Document, Span

Kind = TypeVar("Kind", bound=Store)
DIMS = {"f": 4, "g": 3}
"""Of the vectors of each encoder."""
Row = tuple[str, str, dict[str, Any]]
"""Id, text, metadata."""


def vector(fingerprint: str, text: str) -> list[float]:
    return [crc32(f"{fingerprint} {i} {text}".encode()) / 2**32 for i in range(DIMS.get(fingerprint, 5))]


def vectors(fingerprint: str, texts: Sequence[str]) -> Floats:
    rows = [vector(fingerprint, text) for text in texts]
    return np.array(rows, dtype=np.float32).reshape(len(texts), DIMS.get(fingerprint, 5))


def cut(text: str, chunking: Chunking | None) -> list[Span]:
    """So many words to a passage; a text without any is one."""
    words = [found.span() for found in re.finditer(r"\S+", text)]
    if chunking is None or not words:
        return [Span(0, len(text))]
    return [
        Span(words[i][0], words[min(i + chunking.tokens, len(words)) - 1][1])
        for i in range(0, len(words), chunking.tokens)
    ]


def content(rows: Sequence[Row], fingerprint: str = "f", chunking: Chunking | None = None) -> Content:
    documents = [Document(*row) for row in rows]
    spans = [cut(document.text, chunking) for document in documents]
    texts = [document.text[a:b] for document, own in zip(documents, spans, strict=True) for a, b in own]
    return Content(documents, vectors(fingerprint, texts), fingerprint, spans if chunking else None, chunking)


def filled(store: Kind, name: str, held: Content) -> Kind:
    """The store, with a new corpus that holds this."""
    assert store.create(Corpus(name))
    (change,) = store.write(name, [held])
    assert isinstance(change, Change), change
    return store
