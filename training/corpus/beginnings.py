"""Detection of files whose lines are no sentences by their first bytes: tables, markup, JSON and binary formats."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Mapping
from itertools import islice

HEAD = 1 << 14
"""Number of bytes that are examined."""
ROWS = 4
"""Rows, header included, that show a table. A file with fewer rows must match in all."""
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
"""Pattern of the end of a line."""
_HTML = (
    r"<(html|head|body|title|meta|p|br|hr|div|span|h[1-6]|[uod]l|li|d[td]|table|t[rdh]|pre|font|center|b|i|em)\s*/?>"
)
_USED = rf'(?!s\b)(?=[^\W_]|["“<]|{_END})'
"""Pattern of the text after a tag that is used as markup.

A sentence that begins by mentioning a tag continues with a space, a comma or the like.
"""
MARKUP = (
    r"<(!doctype|\?xml|[a-z][\w:.-]*\s[^<>]*=)",
    rf"<!--({_END}|.*?-->({_END}|<))",
    rf"<(?=[a-z])[^<>\n]*>{_USED}.*</",
    rf"<([a-z][\w:.-]*+)[^<>\n]*>.*</\1\s*>{_END}",
    # Some tags are never closed. Two of them, or three lines with the same tag at the start, show markup.
    rf"{_HTML}{_USED}.*{_HTML}{_USED}",
    rf"{_HTML}.*\n\s*<\1\s*/?>.*\n\s*<\1\s*/?>",
)
JSON = r'\[?\s*\{\s*"[^"]*"\s*:'


def seen(head: bytes, delimiters: Mapping[str, str], columns: Collection[str]) -> str | None:
    """Name the format that the first `HEAD` bytes show, or return None for possible text with a sentence per line.

    Args:
        delimiters: possible delimiters of a table, by the suffix of its name.
        columns: names, one of which a table must have; text may have equally many commas in every line.
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
    """Return a table's column names, or None if the text is no table with one of these columns."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    first = list(islice(filter(None, rows), ROWS))
    if len(first) < 2 or (not whole and next(rows, None) is None):  # The last visible row may be truncated.
        return None
    header = first[0]
    # Prose has a space after a comma.
    names_one = any(name.lower() in columns for name in header) and all(name == name.strip() for name in header)
    return header if names_one and len({len(row) for row in first}) == 1 < len(header) else None
