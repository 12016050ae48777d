"""Conversion of uploads from other character encodings to UTF-8."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO

from serving.errors import Malformed, UnsupportedMedia
from serving.operations.encoding import BUFFER, stream_of

BOMS = {
    codecs.BOM_UTF8: "",
    codecs.BOM_UTF32_LE: "utf-32-le",  # must come before UTF-16, whose mark is a prefix of this mark
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_CODECS = {
    **dict.fromkeys(("utf-8", "ascii"), ""),
    "utf-16": "utf-16-le",
    "iso8859-1": "cp1252",  # as in browsers, these four labels select a superset of the charset
    "shift_jis": "cp932",
    "gb2312": "gbk",
    "euc_kr": "cp949",
    **{
        name: name
        for name in (
            *("utf-16-le", "utf-16-be", "mac-roman", "koi8-r", "koi8-u", "tis-620"),
            *(f"cp125{i}" for i in range(9)),
            *(f"iso8859-{i}" for i in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16)),
            *("cp932", "euc_jp", "gbk", "gb18030", "big5", "cp949"),
        )
    },
}
"""Python's codec for each supported charset. The keys are Python's names of the charsets. Spreadsheet programs write
files in these charsets. UTF-8 and ASCII have an empty string, because these files need no conversion."""

META_BYTES = 1024
"""Number of bytes at the beginning of a page that are searched for its charset (HTML Standard, 13.2.3.2)."""
_META = re.compile(rb"""<meta[^>]+charset\s*=\s*["']?\s*([A-Za-z0-9_.:-]+)""", re.IGNORECASE)


def codec(charset: str) -> str:
    """Return the name of Python's codec for the named charset of a file.

    For UTF-8 and ASCII, return an empty string, because files in these charsets need no conversion.

    Raises:
        UnsupportedMedia: the charset is not supported.
    """
    try:
        return _CODECS[codecs.lookup(charset).name]
    except (LookupError, ValueError):
        raise UnsupportedMedia(
            f"{charset[:40]!r} is not supported: save the file as UTF-8, or give its charset", field="charset"
        ) from None


def meta_charset(page: BinaryIO) -> str:
    """Return the name of Python's codec for the charset that an HTML page names in its first bytes.

    An empty string stands for UTF-8. It is also returned if the page names ASCII, no charset or an unsupported charset.
    A page that names UTF-16 is read as UTF-8, as in browsers: the name is written in ASCII, so the page is not UTF-16.
    """
    found = _META.search(page.read(META_BYTES))
    try:
        named = codec(found[1].decode("ascii")) if found else ""
    except UnsupportedMedia:
        return ""
    return "" if named.startswith("utf-16") else named


def in_utf8(begun: Callable[[], BinaryIO], charset: str) -> BinaryIO:
    """Return the content of a file as a stream in UTF-8. A byte order mark overrides `charset`.

    Reading the stream raises `Malformed` at the first byte that is invalid in the charset. If the charset is UTF-8, the
    bytes are returned unchecked.

    Args:
        begun: function that opens the file at its beginning.
        charset: name of Python's codec, or an empty string for UTF-8, as `codec` returns it.
    """
    start = begun().read(max(map(len, BOMS)))
    charset = next((name for mark, name in BOMS.items() if start.startswith(mark)), charset)
    return stream_of(_recoded(begun(), charset)) if charset else begun()


def _recoded(stream: BinaryIO, charset: str) -> Iterator[bytes]:
    line = 1
    try:
        for text in codecs.iterdecode(iter(partial(stream.read, BUFFER), b""), charset):
            line += text.count("\n")
            yield text.encode()
    except UnicodeDecodeError as error:
        line += error.object[: error.start].decode(charset).count("\n")
        raise Malformed(f"not {charset}: a byte is 0x{error.object[error.start]:02x}", field=f"line {line}") from None
