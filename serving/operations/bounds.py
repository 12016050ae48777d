"""Limits on requests and on restored corpora, and checks of corpus names and document ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, Field, FiniteFloat

from serving.errors import Empty, Invalid, TooLarge

CORPUS_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
MAX_ID_BYTES = 512
NAMED_CORPORA = 50
"""Default number of corpora that have their own label in the metrics. Each label adds 0.16 ms to a scrape, and the
server answers no other request meanwhile."""
MAX_COLUMN = 256
"""Maximum characters in the name of an upload's column or field, such as the column that has the texts."""
MAX_COLUMN_TYPES = 8192
"""Maximum characters of the JSON that gives the types of columns."""
MAX_METADATA = 2048
"""Maximum characters of the JSON metadata that an upload gives to all its documents."""
_CORPUS = re.compile(CORPUS_NAME.rstrip("$") + r"\Z")
MAX_VECTOR = 65_536
"""Maximum number of components of a vector. No encoder has that many dimensions."""
About = Annotated[str, Field(max_length=2000)]
"""Description of a corpus, as a field of a request."""
RecallTarget = Annotated[float, Field(gt=0, le=1)]
Fingerprint = Annotated[str, Field(max_length=255)]
"""Fingerprint of a bundle, as a field of a request."""
MAX_SETTING_BYTES = 65_536
"""Maximum bytes, as JSON, of one setting for keyword search."""


def _check_setting(given: Any) -> Any:
    try:
        size = len(orjson.dumps(given))
    except TypeError:
        raise ValueError("not valid Unicode: a lone surrogate") from None
    if size > MAX_SETTING_BYTES:
        raise ValueError(f"{size} bytes are more than the {MAX_SETTING_BYTES} of one setting")
    return given


_Words = Annotated[str, Field(min_length=1, max_length=100)]
Synonyms = Annotated[
    dict[_Words, Annotated[list[_Words], Field(max_length=20)]], Field(max_length=1000), AfterValidator(_check_setting)
]
"""Synonyms for keyword search. Each key is a word or a phrase. If a query contains the key, the search also looks for
the words and phrases in the key's list."""
StopWords = Annotated[list[_Words], Field(max_length=1000), AfterValidator(_check_setting)]
"""Words that keyword search ignores in queries."""
_FieldPath = Annotated[str, Field(min_length=1, max_length=512)]
MAX_SEARCHED_FIELDS = 8
SearchedFields = Annotated[
    dict[_FieldPath, Annotated[FiniteFloat, Field(gt=0, le=100)]],
    Field(max_length=MAX_SEARCHED_FIELDS),
    AfterValidator(_check_setting),
]
"""Metadata fields that keyword search includes, each with a weight. A word in a field with the weight 2 counts as much
as two words in the text."""
Moment = Annotated[FiniteFloat, Field(ge=0, lt=253_402_300_800)]
"""A time in seconds since the epoch, before the year 10000."""
MAX_COUNT = 2**48
"""Maximum number of passages that can ever be added to a corpus. At a million passages per second, this number is
reached after nine years."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


def check_corpus_name(name: str, field: str = "corpus") -> str:
    """Return `name`, or raise `Invalid` if it is not a valid corpus name."""
    if not _CORPUS.match(name):
        raise Invalid(f"{name[:80]!r} is not a corpus name: it must match {CORPUS_NAME}", field=field)
    return name


def check_document_id(name: str, field: str) -> str:
    """Return `name`, or raise `Invalid` if it is not a valid document id.

    A document id has 1 to 512 bytes in UTF-8, and no NUL. The names `.` and `..` are not valid, because clients remove
    them from a URL path, even if they are percent-encoded (RFC 3986, 5.2.4). If `..` were a document id, a request
    for this document would act on the whole corpus.
    """
    if "\x00" in name:
        raise Invalid("must not contain NUL", field=field)
    if name in (".", ".."):
        raise Invalid(f"must not be {name!r}, because HTTP clients remove it from the path of a request", field=field)
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Invalid("not valid Unicode: a lone surrogate", field=field) from None
    if not 1 <= size <= MAX_ID_BYTES:
        raise Invalid(f"must be 1 to {MAX_ID_BYTES} bytes long, not {size}", field=field)
    return name


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits on a document and on a restored corpus."""

    text_bytes: int = 999_999
    """Maximum bytes of the text in UTF-8."""
    metadata_bytes: int = 65_536
    """Maximum bytes of the metadata as JSON."""
    restored_bytes: int = 16_000_000_000
    """Maximum bytes of a snapshot after decompression."""


BOUNDS = Bounds()
"""The default limits."""


def check_some(given: Sized, field: str, of: str = "text") -> None:
    """Raise `Empty` if `given` is empty. `of` is the message's word for an item, in the singular."""
    if not len(given):
        raise Empty(f"must contain at least one {of}", field=field)


def check_count(given: int, limit: int, field: str, of: str = "texts") -> None:
    """Raise `TooLarge` if `given`, the number of items in a request, exceeds `limit`. `of` names the items."""
    if given > limit:
        raise TooLarge(f"{given} {of} are more than the {limit} of one request", field=field)


def check_max_tokens(asked: int | None, read: int, field: str) -> None:
    """Raise `Invalid` if a request limits texts to fewer tokens (`asked`) than the model reads (`read`)."""
    if asked is not None and asked < read:
        raise Invalid(
            f"must be at least {read}, the number of tokens that the model reads: truncate texts to fewer tokens "
            "before you send them",
            field=field,
        )


def check_text(text: str, limit: int, field: str) -> None:
    """Raise `Invalid` for a lone surrogate, and `TooLarge` if a text has more than `limit` bytes in UTF-8."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid("not valid Unicode: a lone surrogate", field=field) from None
    if size > limit:
        raise TooLarge(f"{size} bytes are more than the {limit} of one text", field=field)


def check_metadata(metadata: Any, limit: int, field: str) -> None:
    """Raise `Invalid` if `metadata` is not an object that JSON can store, or `TooLarge` if it exceeds `limit` bytes."""
    from serving.operations.json_body import misfit  # this import loads NumPy, which the server's help does not need

    if not isinstance(metadata, Mapping):
        raise Invalid("must be an object", field=field)
    if wrong := misfit(metadata):
        raise Invalid(wrong[1], field=f"{field}.{wrong[0]}")
    if (size := len(orjson.dumps(metadata))) > limit:
        raise TooLarge(
            f"{size} bytes are more than the {limit} of one document's metadata, including all its other fields",
            field=field,
        )
