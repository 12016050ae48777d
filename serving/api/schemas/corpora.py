"""Request and response bodies of corpora and documents, which follow the rules of `schemas.ClosedBody`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from serving.api.schemas.bodies import AskedModel, ClosedBody, lower
from serving.corpora.filter_language import MAX_CONDITIONS, MAX_VALUES
from serving.corpora.values import Stemming
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
    """An alias and its corpus."""

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
