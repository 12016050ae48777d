"""Request and response bodies of corpora and documents. The requests are subclasses of `bodies.ClosedBody`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from serving.api.schemas.bodies import AskedModel, ClosedBody, lower
from serving.corpora.filter_language import MAX_CONDITIONS, MAX_VALUES
from serving.corpora.values import Stemming
from serving.operations.bounds import CORPUS_NAME, MAX_VECTOR, About, RecallTarget, SearchedFields, StopWords, Synonyms
from serving.operations.json_body import no_json

Conditions = Annotated[
    dict[str, Any],
    Field(
        max_length=MAX_CONDITIONS,
        description=f"Filter on the metadata, with at most {MAX_CONDITIONS} conditions, and at most {MAX_VALUES} "
        "values in lists and objects.",
    ),
]
"""Filter as a JSON object. Each key has at least one condition, so `MAX_CONDITIONS` also limits the number of keys."""


def _check_unicode(ids: list[str]) -> list[str]:
    if wrong := no_json(ids):
        raise ValueError(wrong)
    return ids


def _as_text(ids: Any) -> Any:
    return [str(one) if type(one) is int else one for one in ids] if isinstance(ids, list) else ids


INTEGERS_AS_TEXT = BeforeValidator(_as_text)
"""Validator of ids of documents in a body. It converts integers to text, as uploads do."""
UNICODE = AfterValidator(_check_unicode)
"""Validator of ids of documents in a body. It refuses lone surrogates, which a store can't look up."""
Warnings = Annotated[
    list[str] | None,
    Field(
        description="Warnings about conditions that no document can meet, because no document has the field or a "
        "value of this type, and about fields without values to sort, group or count. Absent if there are no warnings."
    ),
]


def warnings_of(**parts: Sequence[str]) -> dict[str, Any]:
    """Return a dict with the field `warnings` of an answer. Without warnings, return an empty dict.

    `parts` has the warnings by field of the request. In the answer, each warning begins with the name of its field.
    """
    warnings = [f"{part}: {warning}" for part, unmatched in parts.items() for warning in unmatched]
    return {"warnings": warnings} if warnings else {}


class CorpusRequest(ClosedBody):
    """Request to create or change a corpus, with its settings."""

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
        description="Synonyms for lexical search. Each key is a word or a phrase. If a query contains the key, the "
        "search also looks for the words in the key's list. `{}` removes all synonyms.",
        examples=[{"ny": ["new york"], "new york": ["ny"]}],
    )
    stop_words: StopWords | None = Field(
        default=None,
        description="Words that lexical search ignores in queries, unless a query has no other words. `[]` removes "
        "all stop words.",
        examples=[["the", "of"]],
    )
    fields: SearchedFields | None = Field(
        default=None,
        description="Metadata fields that lexical search includes, each with a weight. For example, a word in a "
        "field with the weight 2 counts as much as two words in the text. `{}` removes all fields.",
        examples=[{"title": 2.0}],
    )
    model: AskedModel = None
    vectors: Annotated[Literal["encoder", "own"], BeforeValidator(lower)] = Field(
        default="encoder",
        description="Origin of the vectors. `encoder`: the server embeds the documents. `own`: each uploaded "
        "document has its own `vector`, and searches give a vector, words or both.",
    )
    dim: int | None = Field(
        default=None,
        ge=1,
        le=MAX_VECTOR,
        description="Number of dimensions of the vectors, for `vectors: own`. Default: the number of dimensions of "
        "the first vector.",
    )


class RenameRequest(ClosedBody):
    """Request to rename a corpus. `name` is the new name."""

    name: str = Field(json_schema_extra={"pattern": CORPUS_NAME})


class AliasRequest(ClosedBody):
    """Request to point an alias to a corpus."""

    corpus: str = Field(description="Name or alias of the corpus.", json_schema_extra={"pattern": CORPUS_NAME})


class AliasAnswer(BaseModel):
    """An alias, and the name of its corpus."""

    alias: str
    corpus: str


class AliasesAnswer(BaseModel):
    """List of aliases, ordered by name."""

    aliases: list[AliasAnswer]


class IndexAnswer(BaseModel):
    """Index of a corpus for dense search. If `queries` is 0, `recall` and `build_seconds` may be unmeasured."""

    kind: str
    parameters: dict[str, int]
    target: float
    recall: float
    recall_by_filter: dict[str, float] = Field(
        description="Recall of filtered searches. Each key is the share of passages that the filter matches, such "
        "as `0.1`."
    )
    queries: int = Field(description="Number of held-out queries with which recall was measured. 0 if search is exact.")
    build_seconds: float
    bytes: int = Field(description="Size of the index in memory and in files, in bytes.")
    main: int = Field(description="Number of vectors in the index when it was built.")
    tail: int = Field(
        description="Number of vectors added after the index was built. Searches compare these vectors exactly."
    )
    dead: int = Field(description="Number of deleted or replaced vectors in the index. Searches never return them.")
    state: Literal["ready", "building"]
    reason: str | None = Field(description="Reason why search is exact. null if an approximate index is used.")


class CorpusAnswer(BaseModel):
    """A corpus and its state."""

    name: str
    description: str | None
    documents: int
    passages: int = Field(
        description="Number of passages. Each passage has one vector. A document that was split has several passages."
    )
    bytes: int = Field(description="Size of the stored data without the index, in bytes.")
    dim: int | None
    vectors: Literal["encoder", "own"] = Field(
        description="Origin of the vectors. `encoder`: the server embeds the documents. `own`: vectors come with "
        "the documents."
    )
    fingerprint: str | None = Field(
        description="Fingerprint of the bundle that embeds the corpus. null if the corpus has no encoder yet, or if "
        "`vectors` is `own`."
    )
    recall_target: float
    stemming: Stemming = Field(
        description="Stemming for lexical search. `none` compares whole words, `porter` compares English stems."
    )
    synonyms: Synonyms | None = Field(
        description="Synonyms for lexical search. Each key is a word or a phrase. If a query contains the key, the "
        "search also looks for the words in the key's list. null in a list of corpora."
    )
    stop_words: StopWords | None = Field(
        description="Words that lexical search ignores in queries. null in a list of corpora."
    )
    fields: SearchedFields = Field(description="Metadata fields that lexical search includes, with their weights.")
    index: str = Field(description="`exact`, or the kind of the approximate index.")
    recall: float = Field(description="Measured recall@10 against exact search. 1 if search is exact.")
    index_details: IndexAnswer | None = Field(description="Details of the index. null until the corpus has a document.")
    state: Literal["ready", "stale", "damaged"] = Field(
        description="State of the corpus. `stale`: the server does not serve the bundle that embedded the corpus. "
        "`damaged`: requests for the corpus return an error with the reason."
    )
    created: float


class CorporaAnswer(BaseModel):
    """A page of corpora, ordered by name. `cursor` requests the next page, and is null on the last page."""

    corpora: list[CorpusAnswer]
    cursor: str | None


class ValueAnswer(BaseModel):
    """A value of a metadata field."""

    value: str | int | float | bool | None
    documents: int | None = Field(
        description="Number of documents with the value. null if the corpus has too many documents to count."
    )


_RANGE = "null if the field has no numbers, or if too many values are too large to be indexed."


class FieldAnswer(BaseModel):
    """A metadata field."""

    field: str = Field(
        description="Name of the field in a filter. For a field inside an object, the name is a dotted path."
    )
    kinds: list[Literal["boolean", "list", "null", "number", "object", "string"]]
    least: int | float | None = Field(description=f"Smallest number in the field. {_RANGE}")
    greatest: int | float | None = Field(description=f"Largest number in the field. {_RANGE}")
    values: list[ValueAnswer] = Field(
        description="Indexed values of the field, most frequent first. Each element of a list counts as one value."
    )
    complete: bool = Field(
        description="True if `values` lists all values of the field. False if there are more values, or if a value "
        "is too large to be indexed."
    )


class FieldsAnswer(BaseModel):
    """Metadata fields of the documents in a corpus."""

    fields: list[FieldAnswer]
    complete: bool = Field(
        description="True if `fields` lists all fields of the documents. False if there are more fields, or if a "
        "document has too many fields to be indexed."
    )


class DocumentAnswer(BaseModel):
    """A stored document."""

    id: str
    text: str
    metadata: dict[str, Any]
    expires_at: str | None = Field(
        default=None, description="Time at which the document expires. Absent if the document never expires."
    )


class DocumentsAnswer(BaseModel):
    """A page of documents. `cursor` requests the next page, and is null on the last page."""

    documents: list[DocumentAnswer]
    cursor: str | None
    count: int = Field(description="Number of documents on all pages.")
    warnings: Warnings = None


class UploadAnswer(BaseModel):
    """Result of an upload.

    The documents in `ids` are durable and searchable. `errors` exists only with `on_error=skip`.
    """

    ids: list[str]
    count: int
    errors: list[dict[str, str]] | None = None


class DeleteRequest(ClosedBody):
    """Request to delete all documents that match a filter."""

    filter: Conditions = Field(examples=[{"module": "asyncio.tasks"}], json_schema_extra={"minProperties": 1})


class DocumentPatchRequest(ClosedBody):
    """Request to change one document, with metadata to merge, a new time of expiry, or both."""

    metadata: dict[str, Any] = Field(
        default_factory=dict,
        description="JSON merge patch of the metadata (RFC 7396). Objects are merged, other values replace the old "
        "values, and null removes a field.",
        examples=[{"reviewed": True, "draft": None}],
    )
    expires_at: str | None = Field(
        default=None,
        description="Time at which the document expires, in the format of RFC 3339. With null, the document never "
        "expires. If the field is absent, the expiry does not change.",
        examples=["2030-01-31T08:30:00Z"],
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        """Drop null fields, except `expires_at`. A null `expires_at` means that the document never expires."""
        if not isinstance(value, dict):
            return value
        return {key: one for key, one in value.items() if one is not None or key == "expires_at"}


class PatchRequest(DocumentPatchRequest):
    """Request to change all documents that `ids` lists or `filter` matches."""

    ids: (
        Annotated[list[str], Field(min_length=1, max_length=100_000, fail_fast=True), UNICODE, INTEGERS_AS_TEXT] | None
    ) = None
    filter: Conditions | None = None


class PatchAnswer(BaseModel):
    """Number of changed documents."""

    patched: int
    warnings: Warnings = None


class DeleteAnswer(BaseModel):
    """Number of deleted documents."""

    deleted: int
    warnings: Warnings = None
