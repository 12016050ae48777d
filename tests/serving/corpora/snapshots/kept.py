"""Contents of the corpora of these tests."""

from __future__ import annotations

import numpy as np

from serving.corpora.corpora import Corpora
from serving.corpora.search import Query, SearchOptions
from serving.corpora.values import Content, Document

DIM = 4


def content(*names: str) -> Content:
    vectors = np.eye(DIM, dtype=np.float32)[[i % DIM for i in range(len(names))]]
    return Content([Document(name, f"text of {name}", {"n": i}) for i, name in enumerate(names)], vectors, "f")


def ids(corpora: Corpora, name: str = "c") -> list[str]:
    return [document.id for document in corpora.page(name, None, 100)[0]]


def hits(corpora: Corpora, row: int, name: str = "c") -> list[str]:
    query = Query(None, np.eye(DIM, dtype=np.float32)[row])
    return [hit.passage.document.id for hit in corpora.search(name, [query], SearchOptions(k=1)).hits[0]]
