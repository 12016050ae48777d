"""Request and response bodies of search. The requests are subclasses of `bodies.ClosedBody`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, FiniteFloat, Tag

from serving.api.schemas.bodies import SORT_OBJECT, SORT_TEXT, Body, ClosedBody, Strings, lower
from serving.api.schemas.corpora import INTEGERS_AS_TEXT, UNICODE, Conditions, ValueAnswer, Warnings
from serving.corpora.filters import Point
from serving.corpora.values import Sort
from serving.operations.bounds import CORPUS_NAME, MAX_VECTOR

EVEN = 0.5
"""Default of `alpha`: both scores have the same weight."""
DocumentIds = Annotated[list[str], Field(max_length=100, fail_fast=True), UNICODE, INTEGERS_AS_TEXT]
"""Ids of documents that serve as examples."""
Path = Annotated[str, Field(min_length=1, max_length=512)]
"""Path of a metadata field, with dots between the keys of nested objects. `$id` is the document's id."""


class LikeRequest(ClosedBody):
    """Examples for a search: documents that the hits should resemble, and documents that the hits should not resemble.

    The examples themselves are never hits.
    """

    positive: Annotated[DocumentIds, Field(min_length=1)]
    negative: DocumentIds = Field(default_factory=list)


class RerankOptions(Body):
    """Options for reranking the first hits with a slower and more precise method."""

    model_config = ConfigDict(extra="forbid")

    method: Annotated[Literal["late_interaction", "cross_encoder"], BeforeValidator(lower)] = Field(
        description="`late_interaction` compares the vectors of all tokens of query and passage. `cross_encoder` reads "
        "query and passage together."
    )
    model: str | None = Field(default=None, description="Name of the cross-encoder. Default: the first cross-encoder.")
    candidates: int = Field(
        default=100, ge=1, le=1000, description="Number of first hits to rerank. It must be at least `offset` plus `k`."
    )


class PointRequest(ClosedBody):
    """A point on the earth. Latitude and longitude are in degrees."""

    lat: FiniteFloat = Field(ge=-90, le=90)
    lon: FiniteFloat = Field(ge=-180, le=180)


class FieldSort(ClosedBody):
    """Order of hits by the value of their metadata `field`, or with `near` by the distance of its point from `near`.

    A point in metadata is an object with `lat` and `lon`. If the field has several points, the nearest one counts.
    """

    field: Path = Field(examples=["place"])
    near: PointRequest | None = None
    order: Annotated[Literal["asc", "desc"], BeforeValidator(lower)] = "asc"

    def sort(self) -> Sort:
        return Sort(self.field, self.order == "desc", Point(self.near.lat, self.near.lon) if self.near else None)


def _order_kind(value: Any) -> str:
    return SORT_OBJECT if isinstance(value, dict | FieldSort) else SORT_TEXT


Order = Annotated[
    Annotated[str, Field(max_length=520), Tag(SORT_TEXT)] | Annotated[FieldSort, Tag(SORT_OBJECT)],
    Discriminator(_order_kind),
]


class SearchRequest(ClosedBody):
    """A search by `query`, `queries`, `vector` or `like`, with its options.

    Hybrid mode also allows `query` and `vector` together.
    """

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
    like: LikeRequest | None = Field(
        default=None, description="Search by example documents. Only for the mode `dense`."
    )
    k: int = Field(default=10, ge=1, le=1000)
    offset: int = Field(
        default=0,
        ge=0,
        description=(
            "Number of hits to skip. `offset` plus `k`, times the number of queries and corpora and `group_size`, must "
            "not exceed the server's `--max-search-hits`."
        ),
    )
    mode: Annotated[Literal["dense", "lexical", "hybrid"], BeforeValidator(lower)] = "dense"
    fusion: Annotated[Literal["rrf", "weighted"], BeforeValidator(lower)] = Field(
        default="rrf",
        description="Fusion method of hybrid search. `rrf` combines ranks. `weighted` is a weighted sum of scores.",
    )
    alpha: float = Field(
        default=EVEN,
        ge=0,
        le=1,
        description="Weight of the dense score in the weighted sum. The lexical score has the weight 1 - `alpha`.",
    )
    filter: Conditions | None = None
    cursor: str | None = Field(
        default=None,
        max_length=200,
        description="Cursor of the previous page. `offset` counts from the end of the previous page.",
    )
    exact: bool = Field(default=False, description="If true, use exact search instead of the approximate index.")
    min_score: FiniteFloat | None = Field(
        default=None,
        description="Minimum score of a hit. The server compares it with the rounded `score` in the response.",
    )
    sort: list[Order] | None = Field(
        default=None,
        max_length=8,
        description="Order in which the best 1,000 hits are sorted: by metadata, such as `year:desc`, or by "
        "distance. Numbers come before dates, dates before other strings, and documents without the field last.",
        examples=[["year:desc", "title:asc"], [{"field": "place", "near": {"lat": 48.14, "lon": 11.58}}]],
    )
    diversity: float = Field(
        default=0,
        ge=0,
        le=1,
        description="Weight of diversity in maximal marginal relevance, which reorders the best 200 hits so that "
        "each hit differs from those before it. 0 keeps the order by relevance.",
    )
    group_by: Path | None = Field(
        default=None,
        description="Metadata field by which hits are grouped. `k` and `offset` then count groups, and each hit has "
        "a `group`. `$id` groups by document. Documents without the field are not returned.",
    )
    group_size: int = Field(default=1, ge=1, le=100, description="Maximum number of hits in a group.")
    facets: list[Path] | None = Field(
        default=None,
        max_length=16,
        description="Metadata fields whose values are counted. The count includes all documents with a passage that "
        "`total` counts, not only the hits.",
        examples=[["module"]],
    )
    total: bool = Field(
        default=False,
        description="If true, return the number of passages that match the filter and, in lexical search, contain a "
        "word of the query.",
    )
    explain: bool = Field(
        default=False,
        description="If true, return the rank and the score of each hit in the dense and in the lexical ranking.",
    )
    rerank: RerankOptions | None = Field(
        default=None,
        description="Options for reranking the first hits. If hits are reranked, `score` is the score of the "
        "reranking method, and there is no `cursor`.",
    )
    with_text: bool = True
    with_metadata: bool = True
    with_vector: bool = False
    highlight: bool = Field(
        default=False, description="If true, return the positions of the query's words in the text of each hit."
    )
    prefix: bool = Field(
        default=False,
        description="If true, the last word of the query also finds longer words that begin with it. Use this for "
        "search as you type. A space at the end of the query marks the last word as complete.",
    )
    typos: bool = Field(
        default=False,
        description="If true, also find words with typos. A query word of 5 letters or more may differ by one typo, "
        "and a query word of 9 letters or more by two. Words with typos count less than exact words.",
    )
    corpus: str | None = Field(default=None, description="Name of the corpus. It must equal the name in the path.")


class CorpusSearchRequest(SearchRequest):
    """A search that names one corpus, or several corpora of one encoder, in its body."""

    corpus: str | None = Field(default=None, json_schema_extra={"pattern": CORPUS_NAME})
    corpora: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        description="Names of corpora. The hits of all these corpora are merged by score.",
    )


class SpanAnswer(BaseModel):
    """Range of characters in a document's text. `end` is exclusive."""

    start: int
    end: int


class PartAnswer(BaseModel):
    """Rank and score of a hit in the dense or the lexical ranking of a search."""

    rank: int | None = Field(description="Rank of the hit. The first rank is 1. null if the hit is not in the ranking.")
    score: float | None = Field(description="Cosine similarity or BM25 score.")


class ExplainAnswer(BaseModel):
    """Rank and score of a hit in each ranking of the search."""

    dense: PartAnswer | None = None
    lexical: PartAnswer | None = None


class FieldHighlightsAnswer(BaseModel):
    """A string in a searched metadata field, and the positions of the query's words in the string."""

    field: str
    text: str = Field(
        description="The string, up to the first 1,000 characters of the field. Later characters are not searched."
    )
    highlights: list[SpanAnswer]


class HitAnswer(BaseModel):
    """A passage that the search found.

    The passage is a whole document, or a `span` of a document that was split. For a `span`, `text` has only the text of
    the span.
    """

    corpus: str | None = Field(
        default=None, description="Name of the corpus. Present only in a search of several `corpora`."
    )
    id: str
    score: float = Field(
        description="Cosine similarity in dense search, BM25 score in lexical search, fused score in hybrid search. "
        "With `rerank`, the score of the reranking method."
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
    group: str | int | float | bool | None = Field(
        default=None, description="Value of the field that `group_by` names."
    )
    explain: ExplainAnswer | None = None
    field_highlights: list[FieldHighlightsAnswer] | None = Field(
        default=None,
        description="Strings in searched metadata fields that contain a word of the query. Absent if the corpus has "
        "no searched fields.",
    )


class ResultAnswer(BaseModel):
    """Hits of one query, best first. `cursor` requests the next page, and is null if there is no next page."""

    hits: list[HitAnswer]
    cursor: str | None


class SearchAnswer(BaseModel):
    """Answer to a search.

    One query or vector gets `hits` and `cursor`. Several `queries` get `results`, with one entry for each query.
    """

    hits: list[HitAnswer] | None = None
    cursor: str | None = None
    results: list[ResultAnswer] | None = None
    took_ms: float
    mode: Literal["dense", "lexical", "hybrid"]
    total: int | None = Field(
        default=None,
        description="Number of passages that match the filter and, in lexical search, contain a word of the query.",
    )
    facets: dict[str, list[ValueAnswer]] | None = Field(
        default=None,
        description="The 20 most frequent values of each requested field, with the number of documents for each value.",
    )
    facets_complete: bool | None = Field(
        default=None, description="False if some values were not counted, because they were too many or too large."
    )
    index: str | None = Field(
        description="Index that the dense search used: `exact`, or the kind of the approximate index. `mixed` in a "
        "search of several corpora with different indexes. null in lexical search."
    )
    warnings: Warnings = None
