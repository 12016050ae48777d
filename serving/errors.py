"""All errors with which the server can answer, each with its HTTP status and its kind."""

from __future__ import annotations

from typing import ClassVar, Literal

Kind = Literal[
    "Validation", "Overloaded", "Unhealthy", "Backend", "Tokenizer", "Empty", "NotFound", "Conflict", "Unauthorized"
]


MAX_FIELD, MAX_MESSAGE = 300, 2000
"""Maximum characters of the field and of the message of an error. Both may quote the request, and may be stored."""


class ServiceError(Exception):
    """Base class of the errors that callers receive.

    `field` names the part of the request that caused the error, if any.
    """

    status: ClassVar[int]
    kind: ClassVar[Kind]

    def __init_subclass__(cls, status: int | None = None, kind: Kind | None = None) -> None:
        cls.status, cls.kind = status or cls.status, kind or cls.kind

    def __init__(self, message: str, *, field: str | None = None, retry_after: float | None = None) -> None:
        self.field = None if field is None else shortened(escaped(field or "''"), MAX_FIELD)
        self.message = shortened(escaped(message if field is None else f"{self.field}: {message}"), MAX_MESSAGE)
        self.retry_after = retry_after
        super().__init__(self.message)


def escaped(text: str) -> str:
    """Escape lone surrogates in `text`, because UTF-8 can't encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, most: int) -> str:
    """Return `text`, shortened to `most` characters. A shortened text ends with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


class Malformed(ServiceError, status=400, kind="Validation"):
    """The body does not match its content type."""


class Empty(ServiceError, status=400, kind="Empty"):
    """A list that must have an element is empty."""


class ForeignTokens(ServiceError, status=400, kind="Tokenizer"):
    """A token id is not in the model's vocabulary."""


class Unauthenticated(ServiceError, status=401, kind="Unauthorized"):
    """The request has no API key, or an unknown one."""


class Forbidden(ServiceError, status=403, kind="Unauthorized"):
    """The caller is not allowed to make this request.

    For example, the API key lacks the scope, the key has no access to the corpus, or a foreign web page sent the
    request.
    """


class NotFound(ServiceError, status=404, kind="NotFound"):
    """The corpus, document, model or route does not exist."""


class TooSlow(ServiceError, status=408, kind="Validation"):
    """The body of the request did not arrive in time."""


class Conflict(ServiceError, status=409, kind="Conflict"):
    """The request conflicts with the stored data, for example with vectors of another encoder."""


class TooLarge(ServiceError, status=413, kind="Validation"):
    """The request or its answer is too large: it has too many bytes, texts, tokens, documents or hits."""


class UnsupportedMedia(ServiceError, status=415, kind="Validation"):
    """The route does not support the content type."""


class Invalid(ServiceError, status=422, kind="Validation"):
    """A value has a wrong type or is out of range."""


class Backend(ServiceError, status=424, kind="Backend"):
    """The engine failed on a batch with texts of this request."""


class Overloaded(ServiceError, status=429, kind="Overloaded"):
    """A queue or a limit is exhausted. No part of the request was admitted."""


class Unsupported(ServiceError, status=501, kind="Backend"):
    """The store of the corpora, or this installation, does not support the operation."""


class Unhealthy(ServiceError, status=503, kind="Unhealthy"):
    """The server is loading, draining or failed."""


class Stopped(Unhealthy):
    """The work was cancelled because its caller has left. Committed changes are kept. No caller receives this error."""


class NotServed(Unhealthy):
    """The file of a corpus can't be served until the operator has solved a problem and started the server again."""


class Damaged(Unhealthy):
    """Stored data are damaged. A retry does not help."""


class InsufficientStorage(ServiceError, status=507, kind="Unhealthy"):
    """The disk is full. Nothing was stored."""


class NoRoom(InsufficientStorage):
    """The corpora of this API key have used up the disk quota of the key.

    The owner must delete data. A retry does not help.
    """


class Expired(ServiceError, status=504, kind="Overloaded"):
    """The deadline that the caller set has passed.

    The HTTP status 504 corresponds to gRPC's DEADLINE_EXCEEDED (google.rpc.Code).
    """


def shutting_down() -> Unhealthy:
    """Return the error for callers who are waiting when the server stops."""
    return Unhealthy("the server is shutting down", retry_after=1)
