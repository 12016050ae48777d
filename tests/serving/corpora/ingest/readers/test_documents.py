"""Tests of Markdown, HTML, PDF and DOCX: sections and pages, their headings, and unreadable files."""

from __future__ import annotations

import ast
import io
import random
import tempfile
import zipfile
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.corpora.ingest import readers
from serving.corpora.ingest.readers.__main__ import READERS
from serving.corpora.ingest.readers.pdf import reflowed
from serving.corpora.ingest.readers.unreadable import Unreadable
from tests.serving.corpora.ingest.readers import files

Found = list[tuple[str | None, list[str], str]]
"""Anchor, headings and text of each section."""


def records(format: str, content: bytes | str, *, split: str = "section", source: str = "a") -> list[dict[str, Any]]:
    """Read a file in this process."""
    with tempfile.TemporaryFile() as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.seek(0)
        return [record.value for record in resolve_name(READERS[format])(file, {"split": split, "source": source})]


def sections(format: str, content: bytes | str) -> Found:
    return [
        (one["id"].partition("#")[2], one["metadata"].get("headings", []), one["text"])
        for one in records(format, content)
    ]


def test_sections_of_markdown() -> None:
    linux = "Linux\n\nRun apt:\n\napt install x\n  # a comment\n\nname | size\nx | 1 MB\n\n- one\n- two"
    assert sections("markdown", files.MARKDOWN) == [
        ("", [], "Read this first, then go on."),
        ("linux", ["Install", "Linux"], linux),
        ("windows", ["Install", "Windows"], "Windows\n\nClick the icon & wait."),
    ]
    about = {"title": "Guide", "tags": ["a", "b"], "released": "2024-03-05", "source": "a"}
    assert records("markdown", files.MARKDOWN)[0]["metadata"] == about


def test_a_whole_file_is_one_document() -> None:
    (whole,) = records("markdown", files.MARKDOWN, split="file", source="guide/a.md")
    assert whole["id"] == whole["metadata"]["source"] == "guide/a.md" and "headings" not in whole["metadata"]
    assert whole["text"].startswith("Read this first, then go on.\n\nInstall\n\nLinux\n\nRun apt:")


def test_a_file_without_a_name_has_no_ids() -> None:
    assert records("markdown", "# A\n\ntext", source="") == [{"text": "A\n\ntext", "metadata": {"headings": ["A"]}}]


def test_the_process_of_the_readers_loads_nothing_of_the_server() -> None:
    (folder,) = readers.__path__
    nodes = [node for file in Path(folder).glob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    ours = {name for name in imported if name.partition(".")[0] in ("serving", "models")}
    assert ours and all(name.startswith(f"{readers.__name__}.") for name in ours)


@pytest.mark.parametrize(
    ("text", "headings"),
    [
        ("# A\n\nx\n\n# A\n\ny\n\n# A!\n\nz", ["a", "a-1", "a-2"]),
        ("# A\n\nx\n\n# A\n\ny\n\n# A 1\n\nz\n\n# A", ["a", "a-1", "a-1-1", "a-2"]),
        ("x\n\n# 🚀\n\ny\n\n# ...", ["", "-1", "-2"]),
        ("A\n===\n\nx\n\nB C\n---\n\ny", ["a", "b-c"]),
        ("# Über [uns](x) `f()`\n\nx", ["über-uns-f"]),
        ("### deep\n\nx\n\n# high\n\ny", ["deep", "high"]),
    ],
)
def test_anchors_of_headings_are_those_of_github(text: str, headings: list[str]) -> None:
    assert [anchor for anchor, _, _ in sections("markdown", text)] == headings


@pytest.mark.parametrize(
    "front",
    [
        *("---\n[\n---\n", "---\n- a\n---\n", "---\na: 1\n", "----\na: 1\n----\n"),
        *("---\na: !!bool b\n---\n", "---\na: !!int ''\n---\n", "---\na: !!timestamp b\n---\n"),
    ],
)
def test_what_is_no_front_matter_stays_text(front: str) -> None:
    found = records("markdown", front + "text")
    assert set(found[0]["metadata"]) <= {"source", "headings"} and "text" in found[-1]["text"]


@pytest.mark.parametrize(("split", "source"), [("section", "a"), ("file", "a"), ("section", "")])
def test_front_matter_does_not_mix_with_the_fields_of_sections(split: str, source: str) -> None:
    front = "---\nsource: https://example.org\nheadings: [q]\n---\nIntro\n\n# A\n\nx"
    found = [one["metadata"] for one in records("markdown", front, split=split, source=source)]
    named = {"front_matter_source": "https://example.org", "front_matter_headings": ["q"]}
    named |= {"source": source} if source else {}
    assert found == ([named] if split == "file" else [named, {**named, "headings": ["A"]}])


def test_front_matter_alone_is_a_file_without_text() -> None:
    with pytest.raises(Unreadable, match="no text") as refused:
        records("markdown", "---\na: 1\n---\n")
    assert refused.value.kind == "Empty"


PAGE = """<!doctype html><html><head><title>The  site</title><style>p {}</style><script>if (a < b) {}</script></head>
<body><header>Banner</header><nav><a href=x>Elsewhere</a></nav>
<main><h1>Rivers<a class=headerlink href="#r">¶</a></h1><p>Long &amp; wide.<br>Wet.
<section id=sources><h2><span>The</span> sources</h2><p>High up
<ul><li>one<li><p>two</p><ul><li>inner</ul></ul></section>
<table><caption>Lengths</caption><tr><th>name<th>km<tr><td>Rhine<td><p>1233</p></table>
<pre>  a
    b</pre><p>An <img alt="old map" src=x> and <b>b</b>old<!-- no --><template>no</template>
<svg><text>no</text></svg></main>
<footer>Imprint</footer></body></html>"""


def test_sections_of_html() -> None:
    rivers, sources = sections("html", PAGE)
    assert rivers == ("rivers", ["Rivers"], "Rivers\n\nLong & wide.\nWet.")
    table = "Lengths\n\nname | km\nRhine | 1233\n\n  a\n    b\n\nAn old map and bold"
    assert sources == (
        "sources",
        ["Rivers", "The sources"],
        f"The sources\n\nHigh up\n\n- one\n- two\n- inner\n\n{table}",
    )
    assert records("html", PAGE)[0]["metadata"]["title"] == "The site"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>a<script>x", "ax"),
        ("plain", "plain"),
        ("<h1><div>A</div></h1>b", "A\n\nb"),
        ("<h2>A<p>b", "A b"),
        ("a<table><tr><td>b</table>c", "a\n\nb\n\nc"),
        ("&lt;p&gt; &nbsp; &#233;", "<p> é"),
        ("<h1></h1><p>a", "a"),
        ("</p></div></nav>a", "a"),
    ],
)
def test_html_that_is_not_well_formed(page: str, text: str) -> None:
    assert "\n\n".join(one["text"] for one in records("html", page)) == text


def test_a_tag_in_prose_does_not_hide_the_rest_of_the_file() -> None:
    text = "# API\n\nIt returns a List<object> of <script> items.\n\n## Errors\n\nIt throws <button>not this</button>."
    assert sections("markdown", text) == [
        ("api", ["API"], "API\n\nIt returns a List of items."),
        ("errors", ["API", "Errors"], "Errors\n\nIt throws ."),
    ]
    assert sections("html", "<p>a<noscript><p>b<select><option>no</select>") == [("", [], "a\n\nb")]
    cut = "<nav>menu</nav><script>var a;</script><p>text</p><nav>menu two<p>rest<script>var b"
    assert sections("html", cut) == [("", [], "text\n\nmenu two\n\nrestvar b")]


@given(text=st.text(st.sampled_from("ab \n#-|*_`<>/![]()&;\"'=:.123"), max_size=200))
@settings(max_examples=2 * settings().max_examples)
@pytest.mark.parametrize("format", ["markdown", "html"])
def test_any_text_is_read_or_has_no_text(format: str, text: str) -> None:
    try:
        found = records(format, text)
    except Unreadable as error:
        assert error.kind == "Empty"
    else:
        assert all(one["text"].strip() for one in found)
        assert len({one["id"] for one in found}) == len(found), "each section has its own id"


def test_pages_of_pdf() -> None:
    first = "The boiler was repaired in March, and it has worked well. Short.\n\nThe next paragraph"
    about = {"title": "Report", "source": "a"}
    assert records("pdf", files.PDF) == [
        {"id": "a#page=1", "text": first, "metadata": {**about, "page": 1, "headings": ["Intro"]}},
        {"id": "a#page=3", "text": "Last.", "metadata": {**about, "page": 3, "headings": ["Intro", "Detail"]}},
    ]
    (whole,) = records("pdf", files.PDF, split="file")
    assert whole == {"id": "a", "text": f"{first}\n\nLast.", "metadata": {**about, "pages": 3}}


def test_a_pdf_that_anybody_may_open_is_read_although_it_is_encrypted() -> None:
    assert records("pdf", files.pdf([["open"]], password=""))[0]["text"] == "open"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("one\ntwo\n\nthree", "one two\n\nthree"),
        ("a well-\nknown fact", "a wellknown fact"),
        ("from 3-\n5 and A-\nB", "from 3- 5 and A- B"),
        ("", ""),
        ("A line that is long enough to be full.\nYes.\nNo", "A line that is long enough to be full. Yes.\n\nNo"),
    ],
)
def test_lines_of_a_page_become_paragraphs(page: str, text: str) -> None:
    assert reflowed(page) == text


def test_sections_of_docx() -> None:
    assert sections("docx", files.word()) == [
        ("", [], "Manual\n\nPreface."),
        ("linux", ["Install", "Linux"], "Linux\n\nRun apt.\n\n- one\n- two\n\nname | size\nmerged"),
        ("windows", ["Install", "Windows"], "Windows\n\nClick."),
    ]
    assert records("docx", files.word())[0]["metadata"] == {"title": "Manual", "source": "a"}


def w(name: str, *content: str) -> str:
    return f"<w:{name}>{''.join(content)}</w:{name}>"


def run(text: str, name: str = "t") -> str:
    return w("r", w(name, text))


def control(*content: str, properties: str = "") -> str:
    return w("sdt", w("sdtPr", properties), w("sdtContent", *content))


A, B, C = (w("p", w("pPr", w("rPr", "<w:ins/>")), run(letter)) for letter in "abc")
CONTENTS = '<w:docPartObj><w:docPartGallery w:val="Table of Contents"/></w:docPartObj>'
INNER = w("tbl", w("tr", w("tc", B), w("tc", C)))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (w("p", run("a"), w("ins", run("b"), w("del", run("no", "delText"))), run("c")), "abc"),
        (w("p", w("moveFrom", run("a"))) + w("p", w("moveTo", run("a"))), "a"),
        (w("p", run("a"), control(run("b")), w("fldSimple", run("c"))), "abc"),
        (control(A, control(B)) + C, "a\n\nb\n\nc"),
        (control(w("p", run("Click here.")), properties="<w:showingPlcHdr/>") + A, "a"),
        (control(w("p", run("A, 3")), properties=CONTENTS) + A, "a"),
        (w("tbl", control(w("tr", control(w("tc", A)), w("tc", INNER, "<w:p/>")))), "a | b | c"),
    ],
)
def test_docx_has_the_text_that_word_shows(body: str, text: str) -> None:
    assert sections("docx", files.word_of(body)) == [("", [], text)]


def zipped(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("format", "content", "kind", "says"),
    [
        ("pdf", b"", "Malformed", "empty"),
        ("pdf", b"hello", "Malformed", "not PDF: it begins with b'hello'"),
        ("pdf", files.pdf([["secret"]], password="x"), "Invalid", "encrypted"),
        ("pdf", files.pdf([[], []]), "Empty", "no text and was probably scanned: .*ocrmypdf"),
        ("pdf", files.PDF[: len(files.PDF) // 2], "Malformed", "a damaged PDF file"),
        ("docx", b"", "Malformed", "empty"),
        ("docx", b"\xd0\xcf\x11\xe0" + b"x" * 600, "Invalid", r"encrypted, or is in the old format \.doc"),
        ("docx", zipped("xl/workbook.xml", b"<a/>"), "Malformed", "without word/document.xml"),
        ("docx", zipped("word/document.xml", b"<a/>"), "Malformed", "a damaged DOCX file"),
        ("docx", zipped("word/document.xml", b" " * 50_000_000), "TooLarge", "100 times as much"),
        ("markdown", b"a\xff", "Malformed", "not UTF-8: byte 2 is 0xff"),
        ("html", b"a\0", "Malformed", "NUL"),
        ("html", b"<script>a</script>", "Empty", "no text"),
    ],
)
def test_files_that_can_not_be_read(format: str, content: bytes, kind: str, says: str) -> None:
    with pytest.raises(Unreadable, match=says) as refused:
        records(format, content)
    assert refused.value.kind == kind and "\n" not in str(refused.value)


@pytest.mark.parametrize(("format", "content"), [("pdf", files.PDF), ("docx", files.word())])
def test_files_with_changed_or_missing_bytes_are_read_or_told(format: str, content: bytes) -> None:
    chance = random.Random(7)
    for _ in range(60):
        damaged = bytearray(content[: chance.randrange(len(content))] if chance.random() < 0.4 else content)
        for _ in range(chance.randrange(4)):
            damaged[chance.randrange(len(damaged) or 1) : chance.randrange(len(damaged) + 1)] = chance.randbytes(3)
        try:
            records(format, bytes(damaged))
        except Unreadable as error:
            assert str(error) and "\n" not in str(error)


def test_every_reader_is_there() -> None:
    assert all(callable(resolve_name(name)) for name in READERS.values())
