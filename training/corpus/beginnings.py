"""What a file is by how it begins, where its lines are no sentences: a table, markup, JSON, or no text at all."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Mapping
from itertools import islice

HEAD = 1 << 14
"""Bytes of a file that are looked at."""
ROWS = 4
"""A table is told by so many rows, with its header, or by all rows of a file that has fewer."""
SIGNATURES = {
    b"%PDF-": "a PDF",
    b"PK\x03\x04": "a ZIP archive, as Office documents are",
    b"\xd0\xcf\x11\xe0": "an Office document",
    b"PAR1": "Parquet: name it .parquet",
    b"SQLite format 3": "an SQLite database",
    b"\x1f\x8b": "packed by gzip, so name it .gz",
    b"\xfd7zXZ": "packed by xz, so name it .xz",
    b"{\\rtf": "RTF",
    b"\\documentclass": "LaTeX",
}
_END = r"[^\S\n]*(?:\n|$)"
"""Of a line."""
_HTML = (
    r"<(html|head|body|title|meta|p|br|hr|div|span|h[1-6]|[uod]l|li|d[td]|table|t[rdh]|pre|font|center|b|i|em)\s*/?>"
)
_USED = rf'(?!s\b)(?=[^\W_]|["“<]|{_END})'
"""Behind a tag that marks text. A sentence that begins by mentioning one goes on with a space, a comma or the like."""
MARKUP = (
    r"<(!doctype|\?xml|[a-z][\w:.-]*\s[^<>]*=)",
    rf"<!--({_END}|.*?-->({_END}|<))",
    rf"<(?=[a-z])[^<>\n]*>{_USED}.*</",
    rf"<([a-z][\w:.-]*+)[^<>\n]*>.*</\1\s*>{_END}",
    # Tags that are never closed: two of them, or three lines that begin with the same one.
    rf"{_HTML}{_USED}.*{_HTML}{_USED}",
    rf"{_HTML}.*\n\s*<\1\s*/?>.*\n\s*<\1\s*/?>",
)
JSON = r'\[?\s*\{\s*"[^"]*"\s*:'


def seen(head: bytes, delimiters: Mapping[str, str], columns: Collection[str]) -> str | None:
    """Name what the first `HEAD` bytes of a file are; None if they may be text with a sentence a line.

    Args:
        delimiters: the possible ones of a table, by the ending of its name.
        columns: a table has one of them; text may have as many commas in every line.
    """
    if signature := next((name for signature, name in SIGNATURES.items() if head.startswith(signature)), None):
        return signature
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "binary"
    text = head.decode("utf-8-sig", errors="replace")
    if any(re.match(one, text.lstrip(), re.IGNORECASE | re.DOTALL) for one in MARKUP):
        return "HTML, XML or other markup"
    if re.match(JSON, text.lstrip()):
        return "JSON: name JSON lines .jsonl"
    for ending, possible in delimiters.items():
        for delimiter in possible:
            if header := _header(text, delimiter, columns, whole=len(head) < HEAD):
                named = f"{', '.join(header):.80}"
                return (
                    f"a table with the columns {named}: name it {ending}, or delete that line if the rest are sentences"
                )
    return None


def _header(text: str, delimiter: str, columns: Collection[str], *, whole: bool) -> list[str] | None:
    """The names of a table's columns; None if the text is no table with one of these columns."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    first = list(islice(filter(None, rows), ROWS))
    if len(first) < 2 or (not whole and next(rows, None) is None):  # the last row of what is seen may be cut
        return None
    header = first[0]
    # Behind a comma prose has a space.
    names_one = any(name.lower() in columns for name in header) and all(name == name.strip() for name in header)
    return header if names_one and len({len(row) for row in first}) == 1 < len(header) else None
