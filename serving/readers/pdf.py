"""Pages of a PDF file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from pypdf import PdfReader
from pypdf.generic import Destination

from serving.readers.sections import document, titled
from serving.readers.unreadable import Records, Unreadable, damage

NO_TEXT = "the file has no text, as if it was scanned: recognise its text first, for example by `ocrmypdf`"
SHORT = 0.7
"""A line that ends a sentence also ends a paragraph if it is shorter than this part of the longest line of the page."""
HEADER = 1024
"""Number of bytes in which a PDF file may have its header (ISO 32000, appendix H)."""
_ENDS = re.compile(r"""[.!?:…]["'”’»)\]]*$""")
_HYPHENATED = re.compile(r"[^\W\d_]-$")


def pages(file: BinaryIO, options: dict[str, Any]) -> Records:
    """Yield the pages that have text or, with `split: file`, the whole file.

    The metadata of a page are its number and, from the outline, the headings of its first part.
    """
    if b"%PDF-" not in (start := file.read(HEADER)):
        raise Unreadable(f"not PDF: it begins with {start[:8]!r}" if start else "the file is empty")
    with damage("PDF"):
        yield from _documents(PdfReader(file), options)


def _documents(reader: PdfReader, options: dict[str, Any]) -> Records:
    if reader.is_encrypted and not reader.decrypt(""):
        raise Unreadable("the file is encrypted: save it without its password", "Invalid")
    about = dict(titled(reader.metadata and reader.metadata.title))
    texts = ((number, reflowed(page.extract_text())) for number, page in enumerate(reader.pages, start=1))
    found = ((number, text) for number, text in texts if text)
    has_text = False
    if options["split"] == "file":
        whole = "\n\n".join(text for _, text in found)
        has_text = bool(whole)
        if whole:
            yield document("the file", whole, "", {**about, "pages": len(reader.pages)}, options)
    else:
        headings = _headings(reader)
        for number, text in found:
            has_text = True
            headed = {"headings": headings[number]} if headings.get(number) else {}
            yield document(f"page {number}", text, f"page={number}", {**about, "page": number, **headed}, options)
    if not has_text:
        raise Unreadable(NO_TEXT, "Empty")


def _headings(reader: PdfReader) -> dict[int, list[str]]:
    """Return, for each page, the outline's headings from the outermost to the last one that begins on or before it."""
    try:
        with damage("PDF"):
            begins = dict(_outline(reader, reader.outline, []))
    except Unreadable:  # the pages can be read without it
        return {}
    headings, last = dict[int, list[str]](), list[str]()
    for number in range(1, len(reader.pages) + 1):
        last = begins.get(number, last)
        headings[number] = last
    return headings


def _outline(reader: PdfReader, entries: list[Any], path: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the pages of the outline's entries, each with the titles of the entry and the entries above it."""
    title = ""
    for entry in entries:
        if isinstance(entry, list):
            yield from _outline(reader, entry, [*path, title])
        elif isinstance(entry, Destination):
            title = " ".join(str(entry.title).split())
            page = reader.get_destination_page_number(entry)
            if page is not None and page >= 0:
                yield page + 1, [*path, title]


def reflowed(text: str) -> str:
    """Return the text of a page with a paragraph in each line, and blank lines between them. Hyphenation is undone."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    longest = max(map(len, lines))
    paragraphs, begins = list[str](), True
    for line in lines:
        if line and begins:
            paragraphs.append(line)
        elif line and _HYPHENATED.search(paragraphs[-1]) and line[0].islower():
            paragraphs[-1] = paragraphs[-1][:-1] + line
        elif line:
            paragraphs[-1] += f" {line}"
        begins = not line or (len(line) < SHORT * longest and bool(_ENDS.search(line)))
    return "\n\n".join(paragraphs)
