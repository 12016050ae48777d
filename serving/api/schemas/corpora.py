"""Request and response bodies of corpora, documents and search, which follow the rules of `schemas.ClosedBody`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, FiniteFloat, Tag, model_validator

from serving.api.schemas.bodies import BY_DISTANCE, BY_VALUE, AskedModel, Body, ClosedBody, Strings, lower
from serving.corpora.filters import MAX_CONDITIONS, MAX_VALUES
from serving.corpora.geo import Point
from serving.corpora.values import Sort, Stemming
from serving.operations.bounds import (
    CORPUS_NAME,
    MAX_VECTOR,
    About,
    RecallTarget,
    SearchedFields,
    StopWords,
    Synonyms,
)

Conditions = Annotated[
    dict[str, Any],
    Field(
        max_length=MAX_CONDITIONS,
        description=f"Filter on the metadata, with at most {MAX_CONDITIONS} conditions and {MAX_VALUES} values in "
        "their lists and objects.",
    ),
]
"""A filter as a JSON object. Each field has at least one condition."""


Warnings = Annotated[
    list[str] | None,
    Field(
        description="Conditions of the filter that no document can meet, because the field is missing or has other "
        "types. Absent if there are none."
    ),
]


def warnings_of(unmatched: Sequence[str], part: str = "filter") -> list[str]:
    """Prefix warnings with the part of the request, as in errors."""
    return [f"{part}: {warning}" for warning in unmatched]


class CorpusRequest(ClosedBody):
    """Purpose of a corpus, and how exact its search must be."""

    description: About | None = None
    recall_target: RecallTarget | None = Field(
        default=None, description="Minimum recall@10 of dense search, from 0 to 1. Default: 0.95."
    )
    stemming: Annotated[Stemming | None, BeforeValidator(lower)] = Field(
        default=None,
        description="Stemming for lexical search. `porter` compares English words by their stems. `none` compares "
        "whole words.",
    )
    synonyms: Synonyms | None = Field(
        default=None,
        description="Further words of lexical search, by the word or phrase of a query that they stand for. `{}` "
        "removes all.",
        examples=[{"ny": ["new york"], "new york": ["ny"]}],
    )
    stop_words: StopWords | None = Field(
        default=None,
        description="Words that lexical search ignores in queries, unless the query has no other word. `[]` removes "
        "all.",
        examples=[["the", "of"]],
    )
    fields: SearchedFields | None = Field(
        default=None,
        description="Metadata fields whose strings lexical search looks at, each with a weight. A word in the field "
        "counts as this many words in the text. `{}` removes all.",
        examples=[{"title": 2.0}],
    )
    model: AskedModel = None
    vectors: Annotated[Literal["encoder", "own"], BeforeValidator(lower)] = Field(
        default="encoder",
        description="Origin of the vectors. `encoder`: the server embeds the documents. `own`: each document has its "
        "own `vector`, and the corpus is searched by vector, by words, or by both.",
    )
    dim: int | None = Field(
        default=None,
        ge=1,
        le=MAX_VECTOR,
        description="Numbers of each vector, with `vectors: own`. Default: as many as the first vector has.",
    )


class RenameRequest(ClosedBody):
    """The new name of a corpus."""

    name: str = Field(json_schema_extra={"pattern": CORPUS_NAME})


class AliasRequest(ClosedBody):
    """The corpus of an alias."""

    corpus: str = Field(
        description="Name of the corpus, or an alias of it.", json_schema_extra={"pattern": CORPUS_NAME}
    )


class AliasAnswer(BaseModel):
    """An alias, and the corpus that it leads to."""

    alias: str
    corpus: str


class AliasesAnswer(BaseModel):
    """Aliases, by name."""

    aliases: list[AliasAnswer]


class IndexAnswer(BaseModel):
    """Index of a corpus for search by meaning, with measurements on the corpus itself."""

    kind: str
    parameters: dict[str, int]
    target: float
    recall: float
    recall_by_filter: dict[str, float] = Field(
        description="Recall of filtered searches. Each key is the share of passages that match, such as `0.1`."
    )
    queries: int = Field(description="Number of held-out queries that recall was measured on. 0 if search is exact.")
    build_seconds: float
    bytes: int = Field(description="Size of the index in memory and files, in bytes.")
    main: int = Field(description="Number of vectors in the index when it was built.")
    tail: int = Field(description="Number of vectors that were added later. They are searched exactly.")
    dead: int = Field(description="Number of deleted or replaced vectors in the index. Searches never return them.")
    state: Literal["ready", "building"]
    reason: str | None = Field(description="Reason why search is exact. null if an approximate index is used.")


class CorpusAnswer(BaseModel):
    """A corpus and its state."""

    name: str
    description: str | None
    documents: int
    passages: int = Field(
        description="Number of passages. Each has one vector. A document that was split has several passages."
    )
    bytes: int = Field(description="Size of the stored data without the index, in bytes.")
    dim: int | None
    vectors: Literal["encoder", "own"] = Field(
        description="Origin of the vectors: the server's encoder, or the documents themselves."
    )
    fingerprint: str | None = Field(
        description="Fingerprint of the bundle that embeds the corpus. null until it is known, and if `vectors` is "
        "`own`."
    )
    recall_target: float
    stemming: Stemming = Field(
        description="Stemming for lexical search. `none` compares whole words, `porter` compares English stems."
    )
    synonyms: Synonyms | None = Field(
        description="Further words of lexical search, by the words that they stand for. null in a list of corpora."
    )
    stop_words: StopWords | None = Field(
        description="Words that lexical search ignores in queries. null in a list of corpora."
    )
    fields: SearchedFields = Field(description="Metadata fields of lexical search, with their weights.")
    index: str = Field(description="`exact`, or the kind of the approximate index.")
    recall: float = Field(description="Measured recall@10 against exact search. 1 if search is exact.")
    index_details: IndexAnswer | None = Field(description="Details of the index. null until the corpus has a document.")
    state: Literal["ready", "stale", "damaged"] = Field(
        description="`stale`: the corpus was embedded by a bundle that is not served. `damaged`: requests for the "
        "corpus return an error with the reason."
    )
    created: float


class CorporaAnswer(BaseModel):
    """Corpora by name. `cursor` is the last name, to request the next page; null if there is none."""

    corpora: list[CorpusAnswer]
    cursor: str | None


class ValueAnswer(BaseModel):
    """A value of a field."""

    value: str | int | float | bool | None
    documents: int | None = Field(
        description="Number of documents with the value. null if the corpus is too large to count them."
    )


_RANGE = "null if the field has no numbers, or too many documents have values that are too large to index."


class FieldAnswer(BaseModel):
    """A field of the metadata."""

    field: str = Field(description="Name of the field in a filter. A field inside an object is a dotted path.")
    kinds: list[Literal["boolean", "list", "null", "number", "object", "string"]]
    least: int | float | None = Field(description=f"Smallest number. {_RANGE}")
    greatest: int | float | None = Field(description=f"Largest number. {_RANGE}")
    values: list[ValueAnswer] = Field(
        description="Indexed values, most frequent first. Each element of a list is a value."
    )
    complete: bool = Field(
        description="Whether `values` is complete. false if there are more values, or some are too large to index."
    )


class FieldsAnswer(BaseModel):
    """The fields of the documents."""

    fields: list[FieldAnswer]
    complete: bool = Field(
        description="Whether `fields` is complete. false if there are more fields, or a document has too many to index."
    )


class DocumentAnswer(BaseModel):
    """A stored document."""

    id: str
    text: str
    metadata: dict[str, Any]
    expires_at: str | None = Field(
        default=None, description="Time from which on the document is not found. Absent if it never expires."
    )


class DocumentsAnswer(BaseModel):
    """A page of documents. `cursor` requests the next page; it is null on the last."""

    documents: list[DocumentAnswer]
    cursor: str | None
    count: int = Field(description="Number of documents on all pages.")
    warnings: Warnings = None


class UploadAnswer(BaseModel):
    """Ids of the documents, which are now durable and searchable. `errors` exists only with `on_error=skip`."""

    ids: list[str]
    count: int
    errors: list[dict[str, str]] | None = None


class DeleteRequest(ClosedBody):
    """Filter of the documents to delete."""

    filter: Conditions = Field(examples=[{"module": "asyncio.tasks"}], json_schema_extra={"minProperties": 1})


class DocumentPatchRequest(ClosedBody):
    """Metadata to merge into a document, or its new time of expiry, or both."""

    metadata: dict[str, Any] = Field(
        default_factory=dict,
        description="JSON merge patch (RFC 7396): objects are merged, other values replace, and null removes a field.",
        examples=[{"reviewed": True, "draft": None}],
    )
    expires_at: str | None = Field(
        default=None,
        description="Time of RFC 3339 from which on the document is not found. null removes it. If it is absent, the "
        "time stays.",
        examples=["2030-01-31T08:30:00Z"],
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        """Keep a null `expires_at`, which removes the time."""
        if not isinstance(value, dict):
            return value
        return {key: one for key, one in value.items() if one is not None or key == "expires_at"}


class PatchRequest(DocumentPatchRequest):
    """Changes of the documents that `ids` or `filter` name."""

    ids: list[str] | None = Field(default=None, min_length=1, max_length=100_000)
    filter: Conditions | None = Field(default=None, json_schema_extra={"minProperties": 1})


class PatchAnswer(BaseModel):
    """Number of patched documents."""

    patched: int
    warnings: Warnings = None


class DeleteAnswer(BaseModel):
    """Number of deleted documents."""

    deleted: int
    warnings: Warnings = None


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
