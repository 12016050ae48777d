"""Request and response bodies of corpora, documents and search, which follow the rules of `schemas.ClosedBody`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from serving.api.schemas import AskedModel, ClosedBody, Strings, lower
from serving.bounds import MAX_VECTOR, About, RecallTarget
from serving.filters import MAX_CONDITIONS, MAX_VALUES
from serving.names import CORPUS_NAME
from serving.ports import Stemming

Conditions = Annotated[
    dict[str, Any],
    Field(
        max_length=MAX_CONDITIONS,
        description=f"at most {MAX_CONDITIONS} conditions, and {MAX_VALUES} values within their lists and objects",
    ),
]
"""A filter as a JSON object. Each field has at least one condition."""


Warnings = Annotated[
    list[str] | None,
    Field(
        description="conditions of the filter that no document can meet: their field is missing or holds other types;"
        " absent where there are none"
    ),
]


def warnings_of(unmatched: Sequence[str], part: str = "filter") -> list[str]:
    """Prefix warnings with the part of the request, as in errors."""
    return [f"{part}: {warning}" for warning in unmatched]


class CorpusRequest(ClosedBody):
    """Purpose of a corpus, and how exact its search must be."""

    description: About | None = None
    recall_target: RecallTarget | None = Field(default=None, description="recall@10; 0.95 by default")
    stemming: Annotated[Stemming | None, BeforeValidator(lower)] = Field(
        default=None,
        description="which words are the same to a search by words: porter takes English ones by their stems",
    )
    model: AskedModel = None


class IndexAnswer(BaseModel):
    """Index of a corpus for search by meaning, with measurements on the corpus itself."""

    kind: str
    parameters: dict[str, int]
    target: float
    recall: float
    recall_by_filter: dict[str, float] = Field(description="the same under filters that leave such a share")
    queries: int = Field(description="held out, that recall was measured on; 0 where search is exact")
    build_seconds: float
    bytes: int = Field(description="of memory and files")
    main: int = Field(description="vectors in the index as it was built")
    tail: int = Field(description="vectors written since, searched exactly beside it")
    dead: int = Field(description="vectors in it that were deleted or replaced, and are never found")
    state: Literal["ready", "building"]
    reason: str | None = Field(description="why search is exact, if it is")


class CorpusAnswer(BaseModel):
    """A corpus and its state."""

    name: str
    description: str | None
    documents: int
    passages: int = Field(description="as many vectors: a document that was cut has several")
    bytes: int = Field(description="of what is stored, without the index")
    dim: int | None
    fingerprint: str | None = Field(description="of the bundle that embeds it; null while none is known")
    recall_target: float
    stemming: Stemming = Field(description="none: a word is found as it is; porter: by its English stem")
    index: str = Field(description="what searches it: exact, or the kind of an approximate index")
    recall: float = Field(description="recall@10 against exact search, measured; 1 where search is exact")
    index_details: IndexAnswer | None = Field(description="null before the first document")
    state: Literal["ready", "stale", "damaged"] = Field(
        description="stale: embedded by another bundle than the one served; damaged: whoever asks for it hears why"
    )
    created: float


class CorporaAnswer(BaseModel):
    """Corpora by name. `cursor` is the last name, to request the next page; null if there is none."""

    corpora: list[CorpusAnswer]
    cursor: str | None


class ValueAnswer(BaseModel):
    """A value of a field."""

    value: str | int | float | bool | None
    documents: int | None = Field(description="that have it; null in a corpus too large to count them")


_RANGE = "of its numbers; null also where too many documents hold what is too large to be indexed"


class FieldAnswer(BaseModel):
    """A field of the metadata."""

    field: str = Field(description="as a filter names it: a dotted path where it is within objects")
    kinds: list[Literal["boolean", "list", "null", "number", "object", "string"]]
    least: int | float | None = Field(description=_RANGE)
    greatest: int | float | None = Field(description=_RANGE)
    values: list[ValueAnswer] = Field(description="of what is indexed, most frequent first; of lists each element")
    complete: bool = Field(description="whether there are no others, too large to be indexed ones included")


class FieldsAnswer(BaseModel):
    """The fields of the documents."""

    fields: list[FieldAnswer]
    complete: bool = Field(description="whether there are no others, those of documents with too many included")


class DocumentAnswer(BaseModel):
    """A stored document."""

    id: str
    text: str
    metadata: dict[str, Any]


class DocumentsAnswer(BaseModel):
    """A page of documents. `cursor` requests the next page; it is null on the last."""

    documents: list[DocumentAnswer]
    cursor: str | None
    count: int = Field(description="documents on all pages")
    warnings: Warnings = None


class UploadAnswer(BaseModel):
    """Ids of the documents, which are now durable and searchable. `errors` exists only with `on_error=skip`."""

    ids: list[str]
    count: int
    errors: list[dict[str, str]] | None = None


class DeleteRequest(ClosedBody):
    """Filter of the documents to delete."""

    filter: Conditions = Field(examples=[{"module": "asyncio.tasks"}], json_schema_extra={"minProperties": 1})


class DeleteAnswer(BaseModel):
    """Number of deleted documents."""

    deleted: int
    warnings: Warnings = None


class SearchRequest(ClosedBody):
    """A search by `query`, `queries` or `vector`, and its options."""

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
    offset: int = Field(default=0, ge=0, description="with `k` no more than --max-search-hits")
    mode: Annotated[Literal["dense", "lexical", "hybrid"], BeforeValidator(lower)] = "dense"
    fusion: Annotated[Literal["rrf", "weighted"], BeforeValidator(lower)] = Field(
        default="rrf", description="how `hybrid` makes one score of two: by ranks, or as a weighted sum"
    )
    alpha: float = Field(default=0.5, ge=0, le=1, description="share of meaning in a weighted sum")
    filter: Conditions | None = None
    cursor: str | None = Field(default=None, max_length=200, description="of the page before; `offset` counts from it")
    exact: bool = Field(default=False, description="compare with every vector, whatever the index")
    min_score: FiniteFloat | None = Field(default=None, description="the least `score`, as hits show it, of a hit")
    with_text: bool = True
    with_metadata: bool = True
    with_vector: bool = False
    highlight: bool = Field(default=False, description="tell where in each hit's text words of the query stand")
    corpus: str | None = Field(default=None, description="the one of the path, where that names it")


class CorpusSearchRequest(SearchRequest):
    """A search that names its corpus in the body."""

    corpus: str = Field(json_schema_extra={"pattern": CORPUS_NAME})


class SpanAnswer(BaseModel):
    """A range of characters in the document's text. `end` is exclusive."""

    start: int
    end: int


class HitAnswer(BaseModel):
    """A passage that was found: a document, or a `span` of a document that was split. `text` then has only the span."""

    id: str
    score: float = Field(
        description="cosine of a dense search, BM25 of a lexical one, what fusion gives of a hybrid one"
    )
    dense: float | None = Field(default=None, description="cosine, of a hybrid search")
    lexical: float | None = Field(
        default=None, description="BM25, of a hybrid search; null of what is not among the best thousand by words"
    )
    span: SpanAnswer | None = None
    text: str | None = None
    metadata: dict[str, Any] | None = None
    vector: list[float] | None = None
    highlights: list[SpanAnswer] | None = Field(
        default=None, description="where words of the query stand in `text`, in its first 20,000 characters"
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
    index: str | None = Field(
        description="what found them by meaning: exact, or the kind of an approximate index; null where only words were"
        " looked for"
    )
    warnings: Warnings = None
