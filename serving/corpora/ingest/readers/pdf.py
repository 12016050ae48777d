"""Reader of the pages of a PDF file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from pypdf import PdfReader
from pypdf.generic import Destination

from serving.corpora.ingest.readers.sections import document, titled
from serving.corpora.ingest.readers.unreadable import Records, Unreadable, damage

NO_TEXT = "the file has no text and was probably scanned: recognise its text first, for example by `ocrmypdf`"
SHORT = 0.7
"""Share of the length of the page's longest line. A line that is shorter than this share and ends a sentence also ends
its paragraph."""
HEADER = 1024
"""Number of bytes, from the beginning of a file, within which the PDF header must occur (ISO 32000, appendix H)."""
_ENDS = re.compile(r"""[.!?:…]["'”’»)\]]*$""")
_HYPHENATED = re.compile(r"[^\W\d_]-$")


def pages(file: BinaryIO, options: dict[str, Any]) -> Records:
    """Yield a document for each page with text or, with the option `split: file`, one document for the whole file.

    The metadata of a page are its number and the headings of the outline that apply to the page.

    Raises:
        Unreadable: the file is damaged, encrypted, not PDF, or has no text.
    """
    if b"%PDF-" not in (start := file.read(HEADER)):
        raise Unreadable(f"not PDF: it begins with {start[:8]!r}" if start else "the file is empty")
    with damage("PDF"):
        yield from _documents(PdfReader(file), options)


def _documents(reader: PdfReader, options: dict[str, Any]) -> Records:
    if reader.is_encrypted and not reader.decrypt(""):
        raise Unreadable("the file is encrypted: save it without a password", "Invalid")
    about = titled(reader.metadata and reader.metadata.title)
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
    """Return the headings that apply to each page, from the outermost to the innermost.

    The innermost heading of a page is the last entry of the outline that points to this page. If there is none, the
    page has the same headings as the page before it. If the outline is damaged, the result is empty.
    """
    try:
        with damage("PDF"):
            begins = dict(_outline(reader, reader.outline, []))
    except Unreadable:  # a file needs no outline
        return {}
    headings, last = dict[int, list[str]](), list[str]()
    for number in range(1, len(reader.pages) + 1):
        last = begins.get(number, last)
        headings[number] = last
    return headings


def _outline(reader: PdfReader, entries: list[Any], path: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the page number of each entry of the outline, with the entry's headings.

    The headings are the titles of the entries that contain the entry, outermost first, and its own title.
    """
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
    """Return the text of a page with one line for each paragraph, and with blank lines between paragraphs.

    Words that were hyphenated at the end of a line are joined.
    """
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
