"""Request and response bodies of search, which follow the rules of `schemas.ClosedBody`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, FiniteFloat, Tag

from serving.api.schemas.bodies import BY_DISTANCE, BY_VALUE, Body, ClosedBody, Strings, lower
from serving.api.schemas.corpora import Conditions, ValueAnswer, Warnings
from serving.corpora.filters import Point
from serving.corpora.values import Sort
from serving.operations.bounds import (
    CORPUS_NAME,
    MAX_VECTOR,
)

DocumentIds = Annotated[list[str], Field(max_length=100, fail_fast=True)]
"""Ids of example documents."""
Path = Annotated[str, Field(min_length=1, max_length=512)]
"""A metadata field, as a dotted path. `$id` is the document's id."""


class LikeRequest(ClosedBody):
    """Documents that hits resemble, and documents that hits do not resemble. None of them is a hit."""

    positive: Annotated[DocumentIds, Field(min_length=1)]
    negative: DocumentIds = Field(default_factory=list)


class RerankOptions(Body):
    """Reranking of the first hits by a method that reads query and passage more closely."""

    model_config = ConfigDict(extra="forbid")

    method: Annotated[Literal["late_interaction", "cross_encoder"], BeforeValidator(lower)] = Field(
        description="`late_interaction` compares the vectors of all tokens of query and passage. `cross_encoder` reads "
        "query and passage together."
    )
    model: str | None = Field(default=None, description="Name of the cross-encoder. Default: the first.")
    candidates: int = Field(
        default=100, ge=1, le=1000, description="Number of first hits to rerank. `offset` plus `k` must not exceed it."
    )


class PointRequest(ClosedBody):
    """A point on the earth, in degrees."""

    lat: FiniteFloat = Field(ge=-90, le=90)
    lon: FiniteFloat = Field(ge=-180, le=180)


class DistanceSort(ClosedBody):
    """An order by the distance of the points in a metadata field, which have `lat` and `lon`."""

    field: Path = Field(examples=["place"])
    near: PointRequest
    order: Annotated[Literal["asc", "desc"], BeforeValidator(lower)] = "asc"

    def sort(self) -> Sort:
        return Sort(self.field, self.order == "desc", Point(self.near.lat, self.near.lon))


def _order_kind(value: Any) -> str:
    return BY_DISTANCE if isinstance(value, dict | DistanceSort) else BY_VALUE


Order = Annotated[
    Annotated[str, Field(max_length=520), Tag(BY_VALUE)] | Annotated[DistanceSort, Tag(BY_DISTANCE)],
    Discriminator(_order_kind),
]


class SearchRequest(ClosedBody):
    """A search by `query`, `queries`, `vector` or `like`, in hybrid mode also by `query` and `vector`; and options."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["query"], "properties": {"query": {"type": "string"}, "vector": {"type": "null"}}},
                {"required": ["queries"], "properties": {"queries": {"type": "array"}}},
                {"required": ["vector"], "properties": {"vector": {"type": "array"}, "query": {"type": "null"}}},
                {"required": ["like"], "properties": {"like": {"type": "object"}}},
                {
                    "required": ["query", "vector", "mode"],
                    "properties": {
                        "query": {"type": "string"},
                        "vector": {"type": "array"},
                        "mode": {"enum": ["hybrid"]},
                    },
                },
            ]
        }
    )
    query: str | None = Field(default=None, examples=["run a coroutine with a time limit"])
    queries: Strings | None = None
    vector: list[FiniteFloat] | None = Field(default=None, max_length=MAX_VECTOR, fail_fast=True)
    like: LikeRequest | None = Field(default=None, description="Search by example, in dense mode: more like this.")
    k: int = Field(default=10, ge=1, le=1000)
    offset: int = Field(
        default=0,
        ge=0,
        description="Number of hits to skip. `offset` plus `k` must not exceed the server's `--max-search-hits`.",
    )
    mode: Annotated[Literal["dense", "lexical", "hybrid"], BeforeValidator(lower)] = "dense"
    fusion: Annotated[Literal["rrf", "weighted"], BeforeValidator(lower)] = Field(
        default="rrf",
        description="Fusion method of hybrid search. `rrf` combines ranks, `weighted` is a weighted sum of scores.",
    )
    alpha: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Weight of the dense score in the weighted sum. The lexical score has the weight 1 - `alpha`.",
    )
    filter: Conditions | None = None
    cursor: str | None = Field(
        default=None,
        max_length=200,
        description="Cursor of the previous page. `offset` counts from the end of that page.",
    )
    exact: bool = Field(default=False, description="Use exact search instead of the approximate index.")
    min_score: FiniteFloat | None = Field(
        default=None, description="Minimum score of a hit. It is compared with the rounded `score` in the response."
    )
    sort: list[Order] | None = Field(
        default=None,
        max_length=8,
        description="Order of the best 1,000 hits by metadata, such as `year:desc`, or by distance. Numbers come "
        "before strings, and documents without the field come last.",
        examples=[["year:desc", "title:asc"], [{"field": "place", "near": {"lat": 48.14, "lon": 11.58}}]],
    )
    diversity: float = Field(
        default=0,
        ge=0,
        le=1,
        description="Weight of the difference from the hits before (maximal marginal relevance), among the best 200 "
        "hits. 0 keeps the order by relevance.",
    )
    group_by: Path | None = Field(
        default=None,
        description="Metadata field that groups the hits. `k` and `offset` then count groups, and each hit has its "
        "`group`. `$id` groups by document. Documents without the field are left out.",
    )
    group_size: int = Field(default=1, ge=1, le=100, description="Maximum number of hits in a group.")
    facets: list[Path] | None = Field(
        default=None,
        max_length=16,
        description="Metadata fields whose values are counted in all documents that the search chooses from.",
        examples=[["module"]],
    )
    total: bool = Field(default=False, description="Return the number of passages that the search chooses from.")
    explain: bool = Field(default=False, description="Return the rank and the score of each hit in both rankings.")
    rerank: RerankOptions | None = Field(
        default=None,
        description="Rerank the first hits. Their `score` is then that of the method, and there is no `cursor`.",
    )
    with_text: bool = True
    with_metadata: bool = True
    with_vector: bool = False
    highlight: bool = Field(
        default=False, description="Return the positions of the query's words in the text of each hit."
    )
    prefix: bool = Field(
        default=False,
        description="Find words that begin with the last word of the query, as in search as you type. A space at the "
        "end of the query completes the last word.",
    )
    typos: bool = Field(
        default=False,
        description="Find words that differ from a word of the query by one typo, if it has 5 letters or more, or by "
        "two typos, if it has 9 or more. They count less than the word itself.",
    )
    corpus: str | None = Field(default=None, description="Name of the corpus. It must equal the name in the path.")


class CorpusSearchRequest(SearchRequest):
    """A search that names its corpus, or several corpora of one encoder, in the body."""

    corpus: str | None = Field(default=None, json_schema_extra={"pattern": CORPUS_NAME})
    corpora: list[str] | None = Field(
        default=None, min_length=1, max_length=32, description="Names of corpora, whose hits are merged by score."
    )


class SpanAnswer(BaseModel):
    """A range of characters in the document's text. `end` is exclusive."""

    start: int
    end: int


class PartAnswer(BaseModel):
    """The place of a hit in one ranking."""

    rank: int | None = Field(description="Rank from 1. null if the hit is not in the ranking.")
    score: float | None = Field(description="Cosine similarity or BM25 score.")


class ExplainAnswer(BaseModel):
    """The place of a hit in each ranking of the search."""

    dense: PartAnswer | None = None
    lexical: PartAnswer | None = None


class FieldHighlightsAnswer(BaseModel):
    """A string in a searched field, and the query's words in it."""

    field: str
    text: str = Field(description="The string, or its beginning. Up to 1,000 characters of a field are searched.")
    highlights: list[SpanAnswer]


class HitAnswer(BaseModel):
    """A passage that was found: a document, or a `span` of a document that was split. `text` then has only the span."""

    corpus: str | None = Field(default=None, description="Name of the corpus. Present only in a search of `corpora`.")
    id: str
    score: float = Field(
        description="Cosine similarity in dense search, BM25 score in lexical search, fused score in hybrid search. "
        "With `rerank`, the score of its method."
    )
    dense: float | None = Field(default=None, description="Cosine similarity. Present only in hybrid search.")
    lexical: float | None = Field(
        default=None,
        description="BM25 score. Present only in hybrid search. null if the passage is not among the best 1,000 "
        "lexical hits.",
    )
    span: SpanAnswer | None = None
    text: str | None = None
    metadata: dict[str, Any] | None = None
    vector: list[float] | None = None
    highlights: list[SpanAnswer] | None = Field(
        default=None, description="Positions of the query's words in the first 20,000 characters of `text`."
    )
    group: str | int | float | bool | None = Field(default=None, description="Value of the field of `group_by`.")
    explain: ExplainAnswer | None = None
    field_highlights: list[FieldHighlightsAnswer] | None = Field(
        default=None,
        description="The strings in searched metadata fields that have words of the query. Absent if the corpus has no "
        "searched fields.",
    )


class ResultAnswer(BaseModel):
    """Hits of one query, best first, and the cursor of the next page; null if there is none."""

    hits: list[HitAnswer]
    cursor: str | None


class SearchAnswer(BaseModel):
    """`hits` and `cursor` for a query or vector; `results`, one entry for each query, for `queries`."""

    hits: list[HitAnswer] | None = None
    cursor: str | None = None
    results: list[ResultAnswer] | None = None
    took_ms: float
    mode: Literal["dense", "lexical", "hybrid"]
    total: int | None = Field(default=None, description="Number of passages that the search chooses from.")
    facets: dict[str, list[ValueAnswer]] | None = Field(
        default=None, description="The 20 most frequent values of each requested field, with their documents."
    )
    facets_complete: bool | None = Field(
        default=None, description="false if some values were too large or too many to be counted."
    )
    index: str | None = Field(
        description="Index of the dense search: `exact`, or the kind of the approximate index. null in lexical search."
    )
    warnings: Warnings = None
