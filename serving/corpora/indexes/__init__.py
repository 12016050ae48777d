"""Vector indexes: the growing index of a corpus, and kinds of approximate indexes that are built in the background."""

from __future__ import annotations

from serving.corpora.indexes.approximate import Flat, Hnsw, Ivf
from serving.corpora.indexes.kind import Kind

_KINDS: tuple[Kind, ...] = (Flat(), Hnsw(), Ivf("flat"), Ivf("sq8"), Ivf("pq"))
KINDS = {kind.name: kind for kind in _KINDS}
