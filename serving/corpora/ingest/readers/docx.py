"""Reader of the sections of a DOCX file."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import docx
from docx.table import Table, _Cell
from docx.text.paragraph import Paragraph

from serving.corpora.ingest.readers.sections import Sections, documents, titled
from serving.corpora.ingest.readers.unreadable import Records, Unreadable, check_begins, damage

MAIN = "word/document.xml"
OLE = b"\xd0\xcf\x11\xe0"
MAX_RATIO = 100
"""Maximum ratio of decompressed size to compressed size, for files that have more than `ANY_SIZE` decompressed
bytes."""
ANY_SIZE = 1_000_000
_CONTENTS = "w:sdtPr//w:docPartGallery/@w:val='Table of Contents'"
WRAPPERS = (
    *("ins", "moveTo", f"sdt[not(w:sdtPr/w:showingPlcHdr or {_CONTENTS})]", "sdtContent", "smartTag", "customXml"),
    *("fldSimple", "dir", "bdo"),
)
"""XML elements around text that python-docx does not read: insertions of tracked changes, content controls without
placeholder texts and tables of contents, fields, and text with a direction."""
_HEADING = re.compile(r"Heading ([1-9])")


def sections(file: BinaryIO, options: dict[str, Any]) -> Records:
    """Yield a document for each section of a DOCX file. Paragraphs with the styles Heading 1 to Heading 9 are headings.

    Raises:
        Unreadable: the file is damaged, encrypted or too large, has another format, or has no text.
    """
    with damage("DOCX"):
        _check_container(file)
        document = docx.Document(file)
        _unwrap(document.element.body)
        title = document.core_properties.title
        found = Sections()
        for block in document.iter_inner_content():
            if isinstance(block, Table):
                for row in _rows(block):
                    found.block(row, "row")
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


def _unwrap(body: Any) -> None:
    """Replace each XML element of the kinds `WRAPPERS` by the content of the element."""
    for wrapper in body.xpath("|".join(f".//w:{name}" for name in WRAPPERS)):
        for child in list(wrapper):
            wrapper.addprevious(child)
        wrapper.getparent().remove(wrapper)


def _paragraph(paragraph: Paragraph, found: Sections) -> str:
    """Add a paragraph to `found`. If its style is Title, return its text, else an empty string."""
    text, style = paragraph.text.strip(), paragraph.style.name if paragraph.style else None
    if text and (level := _HEADING.fullmatch(style or "")):
        found.heading(int(level[1]), " ".join(text.split()))
        return ""
    is_item = bool(style and style.startswith("List"))
    found.block(f"- {text}" if text and is_item else text, "item" if is_item else "")
    return text if style == "Title" else ""


def _rows(table: Table) -> Iterator[str]:
    for row in table.rows:
        cells = {id(cell._tc): _cell(cell) for cell in row.cells}  # `row.cells` repeats merged cells
        yield " | ".join(filter(None, cells.values()))


def _cell(cell: _Cell) -> str:
    """Return the text of a cell as one line, including the rows of inner tables."""
    blocks = cell.iter_inner_content()
    lines = [" ".join(_rows(block)) if isinstance(block, Table) else block.text for block in blocks]
    return " ".join(" ".join(lines).split())
