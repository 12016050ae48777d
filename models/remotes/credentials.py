"""The name and password in a URL, which nothing that is printed repeats."""

from __future__ import annotations

import re
from collections.abc import Set
from urllib.parse import unquote

USER = re.compile(r"(?<=://)(?:[^/:\[]*:(?!:|\d*/).*|[^/]*)@")
"""As far as the last `@`: a slash in a password should be written `%2F`, but keys of S3 are pasted as they are."""
USER_IN_TEXT = re.compile(r"(?<=://)[^\s/]*@")


def without_user(url: str) -> str:
    """The URL as it is for everyone."""
    return USER.sub("", url)


def secrets(url: str) -> Set[str]:
    """What of `url` must not stand in a message: name and password, whole, decoded and in pieces.

    The pieces are those that a library takes a password for which should have been encoded.
    """
    users = {user.removesuffix("@") for user in USER.findall(url)}
    passwords = {user.partition(":")[2] for user in users}
    whole = users | passwords
    return {*whole, *map(unquote, whole), *(piece for one in passwords for piece in re.split("[/?#@]", one))} - {""}


def hidden(text: str, secret: Set[str]) -> str:
    """`text` with `***` where a secret stands for itself, and its URLs without users, whoever they are."""
    for one in sorted(secret, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(one)}(?!\w)", "***", text)
    return USER_IN_TEXT.sub("", text)
