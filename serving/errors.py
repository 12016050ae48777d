"""All errors with which the server can answer, each with its HTTP status and its kind."""

from __future__ import annotations

from typing import ClassVar, Literal

Kind = Literal[
    "Validation",
    "Overloaded",
    "Unhealthy",
    "Backend",
    "Tokenizer",
    "Empty",
    "NotFound",
    "Conflict",
    "Unauthorized",
]


MAX_FIELD, MAX_MESSAGE = 300, 2000
"""Maximum characters of an error's field and of its message. Both may quote the request, and both may be stored."""


class ServiceError(Exception):
    """Base class of the errors that callers receive.

    `field` names the part of the request that caused the error, if any.
    """

    status: ClassVar[int]
    kind: ClassVar[Kind]

    def __init__(self, message: str, *, field: str | None = None, retry_after: float | None = None) -> None:
        self.field = None if field is None else shortened(_writable(field or "''"), MAX_FIELD)
        self.message = shortened(_writable(message if field is None else f"{self.field}: {message}"), MAX_MESSAGE)
        self.retry_after = retry_after
        super().__init__(self.message)


def _writable(text: str) -> str:
    """Escape lone surrogates in `text`, because UTF-8 can't encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, most: int) -> str:
    """Return `text`, shortened to `most` characters. A shortened text ends with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


class Malformed(ServiceError):
    """The body does not match its content type."""

    status = 400
    kind = "Validation"


class Empty(ServiceError):
    """A list that must have an element is empty."""

    status = 400
    kind = "Empty"


class ForeignTokens(ServiceError):
    """A token id is not in the model's vocabulary."""

    status = 400
    kind = "Tokenizer"


class Unauthenticated(ServiceError):
    """The request has no API key, or an unknown one."""

    status = 401
    kind = "Unauthorized"


class Forbidden(ServiceError):
    """The API key lacks the scope, or has no access to the corpus.

    On a server without API keys, the caller is not allowed to use the route.
    """

    status = 403
    kind = "Unauthorized"


class NotFound(ServiceError):
    """The corpus, document, model or route does not exist."""

    status = 404
    kind = "NotFound"


class TooSlow(ServiceError):
    """The body of the request did not arrive in time."""

    status = 408
    kind = "Validation"


class Conflict(ServiceError):
    """The request conflicts with the stored data, for example with vectors of another encoder."""

    status = 409
    kind = "Conflict"


class TooLarge(ServiceError):
    """The request has too many bytes, texts, tokens or documents."""

    status = 413
    kind = "Validation"


class UnsupportedMedia(ServiceError):
    """The route does not support the content type."""

    status = 415
    kind = "Validation"


class Invalid(ServiceError):
    """A value has a wrong type or is out of range."""

    status = 422
    kind = "Validation"


class Backend(ServiceError):
    """The engine failed on a batch with texts of this request."""

    status = 424
    kind = "Backend"


class Overloaded(ServiceError):
    """A queue or a limit is exhausted. No part of the request was admitted."""

    status = 429
    kind = "Overloaded"


class Unsupported(ServiceError):
    """The store of the corpora does not support this operation."""

    status = 501
    kind = "Backend"


class Unhealthy(ServiceError):
    """The server is loading, draining or failed."""

    status = 503
    kind = "Unhealthy"


class Stopped(Unhealthy):
    """The work was cancelled because its caller has left. Committed changes are kept. No caller receives this error."""


class Damaged(Unhealthy):
    """Stored data are damaged. A retry does not help."""


class InsufficientStorage(ServiceError):
    """The disk is full. Nothing was stored."""

    status = 507
    kind = "Unhealthy"


class NoRoom(InsufficientStorage):
    """The corpora of this API key have used up its disk quota.

    The owner must delete data. A retry does not help.
    """


class Expired(ServiceError):
    """The deadline that the caller set has passed.

    The HTTP status 504 corresponds to gRPC's DEADLINE_EXCEEDED (google.rpc.Code).
    """

    status = 504
    kind = "Overloaded"


def shutting_down() -> Unhealthy:
    """Return the error for callers who are waiting when the server stops."""
    return Unhealthy("the server is shutting down", retry_after=1)
