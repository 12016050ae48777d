"""Removal of user names and passwords in URLs from messages."""

from __future__ import annotations

import re
from collections.abc import Set
from urllib.parse import unquote

USER = re.compile(r"(?<=://)(?:[^/:\[]*:(?!:|\d*/).*|[^/]*)@")
"""Pattern of a user and password, up to the last `@`. The password may contain a slash. It should be written `%2F`, but
people paste S3 keys unchanged."""
USER_IN_TEXT = re.compile(r"(?<=://)[^\s/]*@")


def without_user(url: str) -> str:
    """Return the URL without user and password."""
    return USER.sub("", url)


def secrets(url: str) -> Set[str]:
    """Return the texts of `url` that messages must not contain: user and password, whole, decoded and in pieces.

    Pieces are included, because a library may use a piece as the password if special characters were not encoded.
    """
    users = {user.removesuffix("@") for user in USER.findall(url)}
    passwords = {user.partition(":")[2] for user in users}
    whole = users | passwords
    return {*whole, *map(unquote, whole), *(piece for one in passwords for piece in re.split("[/?#@]", one))} - {""}


def hidden(text: str, secret: Set[str]) -> str:
    """Replace each secret that is a whole word by `***`. Remove users and passwords from all URLs."""
    for one in sorted(secret, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(one)}(?!\w)", "***", text)
    return USER_IN_TEXT.sub("", text)
