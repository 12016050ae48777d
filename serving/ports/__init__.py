"""Ports: the protocols of engines, indexes and stores, and the values that they exchange."""

from __future__ import annotations

from serving.ports.corpus import (
    RECALL_TARGET,
    Change,
    Chunking,
    Content,
    Corpus,
    Document,
    Facet,
    Facets,
    FacetValue,
    Held,
    Page,
    Passage,
    Removal,
    Scalar,
    Size,
    Span,
    Stemming,
    Write,
)
from serving.ports.engine import Embedded, Engine, EngineError, EngineOptions, Model
from serving.ports.index import Blocks, Floats, Index, IndexSize, Keys, Ranking
from serving.ports.store import Replacing, Stop, Store, StoreError, never

__all__ = [
    "RECALL_TARGET",
    "Blocks",
    "Change",
    "Chunking",
    "Content",
    "Corpus",
    "Document",
    "Embedded",
    "Engine",
    "EngineError",
    "EngineOptions",
    "Facet",
    "FacetValue",
    "Facets",
    "Floats",
    "Held",
    "Index",
    "IndexSize",
    "Keys",
    "Model",
    "Page",
    "Passage",
    "Ranking",
    "Removal",
    "Replacing",
    "Scalar",
    "Size",
    "Span",
    "Stemming",
    "Stop",
    "Store",
    "StoreError",
    "Write",
    "never",
]
