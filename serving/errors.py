"""All errors that the server can answer with, each with its HTTP status and kind."""

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
"""Maximum characters of an error's field and message. Both quote the caller's request, and may be stored."""


class ServiceError(Exception):
    """An error that callers receive. `field` names the part of the request at fault, if there is one."""

    status: ClassVar[int]
    kind: ClassVar[Kind]

    def __init__(self, message: str, *, field: str | None = None, retry_after: float | None = None) -> None:
        self.field = None if field is None else shortened(_writable(field or "''"), MAX_FIELD)
        self.message = shortened(_writable(message if field is None else f"{self.field}: {message}"), MAX_MESSAGE)
        self.retry_after = retry_after
        super().__init__(self.message)


def _writable(text: str) -> str:
    """Escape lone surrogates of `text`, so that UTF-8 can encode quoted text."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, most: int) -> str:
    """Return `text` cut to `most` characters, ending in an ellipsis if it was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


class Malformed(ServiceError):
    """The body does not match its content type."""

    status = 400
    kind = "Validation"


class Empty(ServiceError):
    """A list that needs an element is empty."""

    status = 400
    kind = "Empty"


class ForeignTokens(ServiceError):
    """A token id is not in the model's vocabulary."""

    status = 400
    kind = "Tokenizer"


class Unauthenticated(ServiceError):
    """The request has no key, or an unknown key."""

    status = 401
    kind = "Unauthorized"


class Forbidden(ServiceError):
    """The key lacks the scope, or has no access to the corpus. On a server without keys, the caller is not allowed."""

    status = 403
    kind = "Unauthorized"


class NotFound(ServiceError):
    """The corpus, document, model or route does not exist."""

    status = 404
    kind = "NotFound"


class TooSlow(ServiceError):
    """The body did not arrive in time."""

    status = 408
    kind = "Validation"


class Conflict(ServiceError):
    """The request conflicts with what is stored, most often vectors of another encoder."""

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
    """The engine failed on the batch of this request."""

    status = 424
    kind = "Backend"


class Overloaded(ServiceError):
    """The queue is full. No part of the request was admitted."""

    status = 429
    kind = "Overloaded"


class Unsupported(ServiceError):
    """The backend of the corpora does not have this operation."""

    status = 501
    kind = "Backend"


class Unhealthy(ServiceError):
    """The server is loading, draining or failed."""

    status = 503
    kind = "Unhealthy"


class Stopped(Unhealthy):
    """The work was cancelled because its caller has left. Nothing was done, and nobody gets this error."""


class Damaged(Unhealthy):
    """Stored data are damaged. Waiting does not help."""


class InsufficientStorage(ServiceError):
    """The disk is full. Nothing was stored."""

    status = 507
    kind = "Unhealthy"


class NoRoom(InsufficientStorage):
    """The corpora of this key have used up its share of the disk.

    The owner must delete something; waiting does not help.
    """


class Expired(ServiceError):
    """The caller's own deadline passed. HTTP's 504 corresponds to gRPC's DEADLINE_EXCEEDED (google.rpc.Code)."""

    status = 504
    kind = "Overloaded"


def shutting_down() -> Unhealthy:
    """Return the error for callers who are waiting when the server stops."""
    return Unhealthy("the server is shutting down", retry_after=1)
