"""Legal names of corpora and documents. A corpus name is also a safe file name."""

from __future__ import annotations

import re

from serving.errors import Invalid

CORPUS_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
MAX_ID_BYTES = 512
MAX_COLUMN = 256
"""Characters in the name of a column, or field, that contains texts or ids."""
MAX_COLUMN_TYPES = 8192
"""Characters of the types of columns, as JSON."""
_CORPUS = re.compile(CORPUS_NAME.rstrip("$") + r"\Z")


def check_corpus_name(name: str, field: str = "corpus") -> str:
    """Return the name if it is legal.

    Raises:
        Invalid: the name is not legal.
    """
    if not _CORPUS.match(name):
        raise Invalid(f"{name[:80]!r} is not a corpus name: it must match {CORPUS_NAME}", field=field)
    return name


def check_document_id(name: str, field: str) -> str:
    """Return the id if it is legal: 1 to 512 bytes of UTF-8 without NUL, and neither `.` nor `..`.

    Clients remove these two from a path, however they are escaped (RFC 3986, 5.2.4). A request for the document `..`
    would otherwise act on its corpus.

    Raises:
        Invalid: the id is not legal.
    """
    if "\x00" in name:
        raise Invalid("must not contain NUL", field=field)
    if name in (".", ".."):
        raise Invalid(f"must not be {name!r}, which clients take out of the path of a request", field=field)
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Invalid("not valid Unicode: a lone surrogate", field=field) from None
    if not 1 <= size <= MAX_ID_BYTES:
        raise Invalid(f"must be 1 to {MAX_ID_BYTES} bytes long, not {size}", field=field)
    return name
