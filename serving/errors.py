"""Everything the server can answer with instead of a result: a closed set, each carrying its status and kind."""

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
"""Characters: both quote what callers send, and are kept."""


class ServiceError(Exception):
    """What the caller is told; `field` names the part of the request at fault, where there is one."""

    status: ClassVar[int]
    kind: ClassVar[Kind]

    def __init__(self, message: str, *, field: str | None = None, retry_after: float | None = None) -> None:
        self.field = None if field is None else shortened(_writable(field or "''"), MAX_FIELD)
        self.message = shortened(_writable(message if field is None else f"{self.field}: {message}"), MAX_MESSAGE)
        self.retry_after = retry_after
        super().__init__(self.message)


def _writable(text: str) -> str:
    """`text` with lone surrogates escaped: messages quote what callers send, and UTF-8 must hold them."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, most: int) -> str:
    """Its first `most` characters; the last of them says that there were others."""
    return text if len(text) <= most else text[: most - 1] + "…"


class Malformed(ServiceError):
    """The body is not what its content type says."""

    status = 400
    kind = "Validation"


class Empty(ServiceError):
    """A list that must hold something holds nothing."""

    status = 400
    kind = "Empty"


class ForeignTokens(ServiceError):
    """Token ids that this model's vocabulary does not have."""

    status = 400
    kind = "Tokenizer"


class Unauthenticated(ServiceError):
    """No key, or one that the server does not know."""

    status = 401
    kind = "Unauthorized"


class Forbidden(ServiceError):
    """Not for this caller: a key without the scope or the corpus, or one from another machine."""

    status = 403
    kind = "Unauthorized"


class NotFound(ServiceError):
    """No such corpus, document, model or route."""

    status = 404
    kind = "NotFound"


class TooSlow(ServiceError):
    """The body did not arrive in time."""

    status = 408
    kind = "Validation"


class Conflict(ServiceError):
    """The request does not fit what is stored: above all, vectors of another encoder."""

    status = 409
    kind = "Conflict"


class TooLarge(ServiceError):
    """More bytes, texts, tokens or documents than a request may carry."""

    status = 413
    kind = "Validation"


class UnsupportedMedia(ServiceError):
    """A content type that this route does not read."""

    status = 415
    kind = "Validation"


class Invalid(ServiceError):
    """A wrong type or value."""

    status = 422
    kind = "Validation"


class Backend(ServiceError):
    """The engine failed on the batch that this request was in."""

    status = 424
    kind = "Backend"


class Overloaded(ServiceError):
    """The queue is full; none of the request was admitted."""

    status = 429
    kind = "Overloaded"


class Unhealthy(ServiceError):
    """Loading, draining or failed."""

    status = 503
    kind = "Unhealthy"


class Stopped(Unhealthy):
    """Whoever asked for it has gone: nothing came of it, and nobody is told."""


class Damaged(Unhealthy):
    """What is on disk is not what was written; waiting does not mend it."""


class InsufficientStorage(ServiceError):
    """The disk is full: nothing was stored."""

    status = 507
    kind = "Unhealthy"


class NoRoom(InsufficientStorage):
    """The share of the disk that a key's corpora may take is taken: its owner makes room, no waiting does."""


class Expired(ServiceError):
    """The caller's own deadline passed first. 504 is what HTTP has for gRPC's DEADLINE_EXCEEDED (google.rpc.Code)."""

    status = 504
    kind = "Overloaded"


def going() -> Unhealthy:
    """What whoever waits is told when the server goes."""
    return Unhealthy("the server is shutting down", retry_after=1)
