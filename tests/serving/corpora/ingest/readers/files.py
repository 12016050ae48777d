"""Small files in formats that need a parser."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import docx
import pyarrow
import pyarrow.parquet
from docx.document import Document
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from pyarrow import ipc
from pypdf import PdfWriter
from pypdf.generic import DictionaryObject, NameObject, StreamObject

FONT = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica", "/Encoding": "/WinAnsiEncoding"}
MARKDOWN = """---
title: Guide
tags: [a, b]
released: 2024-03-05
---
Read this first,
then go on.

# Install
## Linux

Run `apt`:

```sh
apt install x
  # a comment
```

| name | size |
|------|------|
| x    | 1 MB |

- one
- two

<script>alert(1)</script>

## Windows

Click the **icon** &amp; wait.
"""


def columns(**values: list[Any]) -> bytes:
    """Return a Parquet file with these columns."""
    return parquet(pyarrow.table(values))


def parquet(table: pyarrow.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink, **options)
    return sink.getvalue()


def arrow(table: pyarrow.Table, *, stream: bool = False) -> bytes:
    sink = io.BytesIO()
    with (ipc.new_stream if stream else ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


def pdf(
    pages: Sequence[Sequence[str]],
    *,
    title: str = "",
    outline: Sequence[tuple[str, int]] = (),
    password: str | None = None,
) -> bytes:
    """Return a PDF file of these lines, where each entry of the outline is below the one before it."""
    writer = PdfWriter()
    for lines in pages:
        page = writer.add_blank_page(612, 792)
        font = DictionaryObject({NameObject(name): NameObject(value) for name, value in FONT.items()})
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        content = StreamObject()
        shown = " ".join(f"({line}) Tj T*" for line in lines)
        content.set_data(f"BT /F1 12 Tf 72 720 Td 14 TL {shown} ET".encode("cp1252"))
        page[NameObject("/Contents")] = writer._add_object(content)
    if title:
        writer.add_metadata({"/Title": title})
    parent = None
    for heading, page_number in outline:
        parent = writer.add_outline_item(title=heading, page_number=page_number, parent=parent)
    if password is not None:
        writer.encrypt(password, owner_password="owner", algorithm="AES-256")
    sink = io.BytesIO()
    writer.write(sink)
    return sink.getvalue()


PDF = pdf(
    [["The boiler was re-", "paired in March, and it has worked well.", "Short.", "The next paragraph"], [], ["Last."]],
    title="Report",
    outline=[("Intro", 0), ("Detail", 2)],
)


def word_of(body: str) -> bytes:
    """Return a DOCX file whose body has this XML."""
    document = docx.Document()
    found = parse_xml(f"<w:body {nsdecls('w')}>{body}</w:body>")
    document.element.body[:] = found[:]
    return saved(document)


def word() -> bytes:
    """Return a DOCX file with a title, headings, a list and a table."""
    document = docx.Document()
    document.add_heading("Manual", 0)
    document.add_paragraph("Preface.")
    document.add_heading("Install", 1)
    document.add_heading("Linux", 2)
    document.add_paragraph("Run apt.")
    for item in ("one", "two"):
        document.add_paragraph(item, style="List Bullet")
    table = document.add_table(2, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "name", "size"
    table.cell(1, 0).merge(table.cell(1, 1)).text = "merged"
    document.add_heading("Windows", 2)
    document.add_paragraph("Click.")
    return saved(document)


def saved(document: Document) -> bytes:
    sink = io.BytesIO()
    document.save(sink)
    return sink.getvalue()
