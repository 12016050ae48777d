"""Request and response bodies of corpora, documents and search; the rules of `schemas.Body` hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from serving.api.schemas import AskedModel, Body, Strings, lower
from serving.names import CORPUS_NAME

MAX_VECTOR = 65_536
"""Numbers in a vector: more than any encoder has dimensions."""


class CorpusRequest(Body):
    """What a corpus is for, and how exact its search must be."""

    description: Annotated[str, Field(max_length=2000)] | None = None
    recall_target: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="recall@10; 0.95 by default"
    )
    model: AskedModel = None


class CorpusAnswer(BaseModel):
    """A corpus and its state."""

    name: str
    description: str | None
    documents: int
    bytes: int
    dim: int | None
    fingerprint: str | None = Field(description="of the bundle that embeds it; null while none is known")
    recall_target: float
    index: str
    recall: float | None = Field(description="recall@10 against exact search")
    state: Literal["ready", "stale"] = Field(description="stale: embedded by another bundle than the one served")
    created: float


class CorporaAnswer(BaseModel):
    """All corpora."""

    corpora: list[CorpusAnswer]


class DocumentAnswer(BaseModel):
    """A stored document."""

    id: str
    text: str
    metadata: dict[str, Any]


class DocumentsAnswer(BaseModel):
    """A page of documents; `cursor` fetches the next one, null on the last."""

    documents: list[DocumentAnswer]
    cursor: str | None


class UploadAnswer(BaseModel):
    """The ids stored, durable and searchable; `errors` only with `on_error=skip`."""

    ids: list[str]
    count: int
    errors: list[dict[str, str]] | None = None


class DeleteRequest(Body):
    """Which documents to delete."""

    filter: dict[str, Any] = Field(examples=[{"module": "asyncio.tasks"}], json_schema_extra={"minProperties": 1})


class DeleteAnswer(BaseModel):
    """How many are gone."""

    deleted: int


class SearchRequest(Body):
    """One of `query`, `queries` and `vector`, and how to answer."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["query"], "properties": {"query": {"type": "string"}}},
                {"required": ["queries"], "properties": {"queries": {"type": "array"}}},
                {"required": ["vector"], "properties": {"vector": {"type": "array"}}},
            ]
        }
    )
    query: str | None = Field(default=None, examples=["run a coroutine with a time limit"])
    queries: Strings | None = None
    vector: list[FiniteFloat] | None = Field(default=None, max_length=MAX_VECTOR, fail_fast=True)
    k: int = Field(default=10, ge=1, le=1000)
    offset: int = Field(default=0, ge=0, le=10_000)
    mode: Annotated[Literal["dense", "lexical", "hybrid"], BeforeValidator(lower)] = "dense"
    filter: dict[str, Any] | None = None
    exact: bool = False
    min_score: FiniteFloat | None = None
    with_text: bool = True
    with_metadata: bool = True
    with_vector: bool = False


class CorpusSearchRequest(SearchRequest):
    """A search that names its corpus in the body."""

    corpus: str = Field(json_schema_extra={"pattern": CORPUS_NAME})


class HitAnswer(BaseModel):
    """A document found; `score` is its cosine to the query."""

    id: str
    score: float
    text: str | None = None
    metadata: dict[str, Any] | None = None
    vector: list[float] | None = None


class SearchAnswer(BaseModel):
    """`hits` of a query or vector, best first; `results`, one entry a query, of `queries`."""

    hits: list[HitAnswer] | None = None
    results: list[dict[Literal["hits"], list[HitAnswer]]] | None = None
    took_ms: float
    mode: Literal["dense"]
    index: str
