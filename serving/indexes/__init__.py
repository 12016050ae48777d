"""The indexes by name; each is made for one width."""

from __future__ import annotations

from serving.indexes.exact import ExactIndex
from serving.indexes.faiss import FaissIndex
from serving.ports import Index

INDEXES: dict[str, type[Index]] = {"exact": ExactIndex, "faiss": FaissIndex}
