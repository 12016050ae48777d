"""What one request may bring."""

from __future__ import annotations

from collections.abc import Sized

from serving.errors import Empty, Invalid, TooLarge


def check_some(given: Sized, field: str, of: str = "text") -> None:
    """Refuse none at all.

    Raises:
        Empty: there are none.
    """
    if not len(given):
        raise Empty(f"must hold at least one {of}", field=field)


def check_count(given: int, limit: int, field: str, of: str = "texts") -> None:
    """Refuse more than one request takes.

    Raises:
        TooLarge: more than `limit`.
    """
    if given > limit:
        raise TooLarge(f"{given} {of} are more than the {limit} of one request", field=field)


def check_text(text: str, limit: int, field: str) -> None:
    """Refuse what can't be embedded or is too much.

    Raises:
        Invalid: a lone surrogate.
        TooLarge: more than `limit` bytes in UTF-8.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid("not valid Unicode: a lone surrogate", field=field) from None
    if size > limit:
        raise TooLarge(f"{size} bytes are more than the {limit} of one text", field=field)
