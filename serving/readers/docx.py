"""Reader of the sections of a DOCX file."""

from __future__ import annotations

import re
import zipfile
from typing import Any, BinaryIO

import docx
from docx.table import Table
from docx.text.paragraph import Paragraph

from serving.readers.sections import Sections, documents, titled
from serving.readers.unreadable import Records, Unreadable, check_begins, damage

MAIN = "word/document.xml"
OLE = b"\xd0\xcf\x11\xe0"
MAX_RATIO = 100
"""Maximum ratio of decompressed size to compressed size, for files that have more than `ANY_SIZE` decompressed
bytes."""
ANY_SIZE = 1_000_000
_HEADING = re.compile(r"Heading ([1-9])")


def sections(file: BinaryIO, options: dict[str, Any]) -> Records:
    """Yield the sections of a DOCX file. The styles Heading 1 to Heading 9 make headings."""
    with damage("DOCX"):
        _check_container(file)
        document = docx.Document(file)
        title = document.core_properties.title
        found = Sections()
        for block in document.iter_inner_content():
            if isinstance(block, Table):
                _table(block, found)
            else:
                title = _paragraph(block, found) or title
    yield from documents(found.end(), titled(title), options)


def _check_container(file: BinaryIO) -> None:
    start = file.read(4)
    if start == OLE:
        raise Unreadable(
            "the file is encrypted, or is in the old format .doc: save it as .docx without a password", "Invalid"
        )
    check_begins(start, (b"PK",), "DOCX")
    members = zipfile.ZipFile(file).infolist()
    packed = file.seek(0, 2)
    if sum(member.file_size for member in members) > max(ANY_SIZE, MAX_RATIO * packed):
        raise Unreadable(f"the file of {packed} bytes unpacks to more than {MAX_RATIO} times as much", "TooLarge")
    if MAIN not in {member.filename for member in members}:
        raise Unreadable(f"not DOCX: a ZIP archive without {MAIN}")
    file.seek(0)


def _paragraph(paragraph: Paragraph, found: Sections) -> str:
    """Add a paragraph to `found`. If it is the title of the file, return its text, else an empty string."""
    text, style = paragraph.text.strip(), paragraph.style.name if paragraph.style else None
    if text and (level := _HEADING.fullmatch(style or "")):
        found.heading(int(level[1]), " ".join(text.split()))
        return ""
    is_item = bool(style and style.startswith("List"))
    found.block(f"- {text}" if text and is_item else text, "item" if is_item else "")
    return text if style == "Title" else ""


def _table(table: Table, found: Sections) -> None:
    for row in table.rows:
        cells = {id(cell._tc): " ".join(cell.text.split()) for cell in row.cells}  # `row.cells` repeats merged cells
        found.block(" | ".join(filter(None, cells.values())), "row")
