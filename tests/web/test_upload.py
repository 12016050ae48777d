"""Tests of uploads from a file to a search."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.serving.conftest import Running
from tests.serving.corpora.ingest.readers import files
from tests.web.conftest import PHONE, Visit
from tests.web.contents import EVIL, as_csv, fill, rows
from tests.web.views import corpus_card, open_view

pytestmark = pytest.mark.slow
INDEXING_MS = 120_000
MB = 1_000_000


@pytest.fixture
def page(server: Running, visit: Visit) -> Page:
    return visit(server.address, "?view=corpora")


def choose(page: Page, path: Path) -> None:
    """Choose a file as with the file picker."""
    page.get_by_label("Choose a file").set_input_files(path)


def job(page: Page, corpus: str) -> Locator:
    """Return the row of the newest job of a corpus."""
    return (
        page.get_by_role("listitem")
        .filter(has_text=re.compile(f"(Adding documents to|Sending|Restoring|A snapshot of).*{corpus}"))
        .first
    )


def test_a_large_csv_to_a_hit_a_filter_a_map(server: Running, page: Page, tmp_path: Path) -> None:
    (tmp_path / "houses.csv").write_bytes(as_csv(rows(20_000)))
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    choose(page, tmp_path / "houses.csv")
    first = page.get_by_role("region", name="First rows")
    expect(first).to_contain_text("The boiler of house 0 was repaired.")
    expect(page.get_by_text(re.compile("about 20,000 rows"))).to_be_visible()
    expect(page.get_by_label("Text is in")).to_have_value("text")
    assert set(sent) <= {"GET"}, "nothing is sent before it is asked for"
    page.get_by_role("button", name="Upload").click()
    expect(job(page, "houses")).to_contain_text("20,000 documents", timeout=INDEXING_MS)
    expect(job(page, "houses")).to_contain_text("succeeded", timeout=INDEXING_MS)
    expect(corpus_card(page, "houses")).to_contain_text("20,000")
    job(page, "houses").get_by_role("link", name="Search it").click()
    page.get_by_role("searchbox").fill("the orchestra of house 19993 stands idle")
    expect(page.get_by_role("main")).to_contain_text("The orchestra of house 19993 stands idle.")
    page.get_by_role("checkbox", name=re.compile("^garden")).check()
    expect(page.get_by_role("button", name="topic: garden")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("definition").first).to_have_text("garden")
    open_view(page, "Compare")
    page.get_by_label("Sentences, one a line").fill("The guitar was sold.\nThe choir was sold.")
    expect(page.get_by_role("rowheader")).to_have_count(2)
    open_view(page, "Map")
    expect(page.get_by_role("combobox", name="Corpus")).to_have_value("houses")
    expect(page.get_by_role("main")).to_contain_text("5,000")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"The ferry is late.\nThe harbour is full.\n"),
        ("b.jsonl", b'{"text": "The ferry is late."}\n{"text": "The harbour is full.", "metadata": {"a": 1}}\n'),
        ("c.json", b'[{"text": "The ferry is late."}, {"text": "The harbour is full."}]'),
        ("d.csv.gz", gzip.compress(b"text;port\nThe ferry is late.;1\nThe harbour is full.;2\n", mtime=0)),
        ("f.json", b'\xef\xbb\xbf[{"text": "The ferry is late."}, {"text": "The harbour is full."}]'),
        ("g.json.gz", gzip.compress(b'[{"text": "The ferry is late."}, {"text": "The harbour is full."}]', mtime=0)),
        ("e.tsv", b"body\tport\nThe ferry is late.\t1\nThe harbour is full.\t2\n"),
    ],
)
def test_every_format(page: Page, tmp_path: Path, name: str, content: bytes) -> None:
    corpus = name[0] + "-" + "corpus"
    (tmp_path / name).write_bytes(content)
    choose(page, tmp_path / name)
    expect(page.get_by_role("region", name="First rows")).to_contain_text("The ferry is late.")
    page.get_by_label("Corpus", exact=True).fill(corpus)
    page.get_by_role("button", name="Upload").click()
    expect(job(page, corpus)).to_contain_text("succeeded")
    expect(corpus_card(page, corpus)).to_contain_text("Documents2")


PARQUET = files.columns(key=["a", "b"], body=["The ferry is late.", "The harbour is full."])


@pytest.mark.parametrize(
    ("name", "content", "choices", "documents"),
    [
        ("p.parquet", PARQUET, {"Text is in": "body", "Id is in": "key"}, 2),
        ("m.md", files.MARKDOWN.encode(), {}, 3),
        ("w.docx", files.word(), {"A document is": "the whole file"}, 1),
        ("r.pdf", files.PDF, {"A document is": "each page"}, 2),
    ],
)
def test_formats_that_the_server_alone_reads(
    page: Page, tmp_path: Path, *, name: str, content: bytes, choices: dict[str, str], documents: int
) -> None:
    (tmp_path / name).write_bytes(content)
    choose(page, tmp_path / name)
    for label, value in choices.items():
        field = page.get_by_label(label)
        field.select_option(label=value) if label == "A document is" else field.fill(value)
    expect(page.get_by_label("Corpus", exact=True)).to_have_value(name[0])
    page.get_by_label("Corpus", exact=True).fill(corpus := f"read-{name[0]}")
    page.get_by_role("button", name="Upload").click()
    expect(job(page, corpus)).to_contain_text("succeeded")
    expect(corpus_card(page, corpus)).to_contain_text(f"Documents{documents}")


def test_a_file_is_added_only_to_a_corpus_that_was_shown(server: Running, page: Page, tmp_path: Path) -> None:
    """Check this for an alias, and for a corpus that another client makes while the form is open."""
    fill(server.client, "real", rows(5))
    server.client.put("/aliases/pen", json={"corpus": "real"}).raise_for_status()
    (tmp_path / "pen.txt").write_text("The ferry is late.")
    choose(page, tmp_path / "pen.txt")
    hint = page.get_by_role("status").filter(has_text=re.compile("corpus|Adds to"))
    expect(hint).to_contain_text("Adds to the 5 documents of real.")
    page.get_by_label("Corpus", exact=True).fill("late")
    expect(hint).to_have_text("A new corpus.")
    fill(server.client, "late", rows(7))
    page.get_by_role("button", name="Upload").click()
    expect(hint).to_contain_text("Adds to the 7 documents of late.")
    assert server.client.get("/corpora/late").json()["documents"] == 7
    page.get_by_role("button", name="Upload").click()
    expect(corpus_card(page, "late")).to_contain_text("Documents8")


def test_a_file_that_changed_after_it_was_chosen_says_so(page: Page, tmp_path: Path) -> None:
    (tmp_path / "edited.txt").write_text("The ferry is late.")
    choose(page, tmp_path / "edited.txt")
    expect(page.get_by_role("region", name="First rows")).to_be_visible()
    (tmp_path / "edited.txt").write_text("The ferry is very late.")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("alert")).to_contain_text("edited.txt was changed after it was chosen")
    page.get_by_role("button", name="Dismiss").click()
    choose(page, tmp_path / "edited.txt")
    expect(page.get_by_text("A new corpus.")).to_be_visible()


def test_a_phone_is_not_told_to_drop_files(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=corpora", viewport=PHONE, has_touch=True, is_mobile=True)
    expect(page.get_by_text("Add a file to make it searchable")).to_be_visible()


def test_a_phone_shows_whole_words_of_the_header(server: Running, visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,description,manufacturer,availability\n" + "a,b,c,d\n" * 3)
    page = visit(server.address, "?view=corpora", viewport=PHONE)
    choose(page, tmp_path / "a.csv")
    for name in ("description", "manufacturer", "availability"):
        header = page.get_by_role("columnheader", name=name).locator("span").first
        assert header.evaluate("(element) => element.getClientRects().length") == 1


def test_a_phone_shows_texts_wider_than_a_word(server: Running, visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,year,open\n" + "The ferry to the island leaves in the morning.,1,true\n" * 3)
    page = visit(server.address, "?view=corpora", viewport=PHONE)
    choose(page, tmp_path / "a.csv")
    box = page.get_by_role("cell", name="The ferry").first.bounding_box()
    assert box and box["width"] > PHONE["width"] / 3


FILES = {
    "excel.csv": (
        "sep=;\r\nID;Text;Preis;PLZ;seit;offen;\r\n1;Fähre – 5 €;1.5;01234;2024-03-05;TRUE;\r\n"
        "2;Quai;;10115;2024-03-06;;\r\n"
    ).encode("cp1252"),
    "wide.tsv": "body\tport\nFähre\t1\nQuai\t2\n".encode("utf-16"),
    "lines.txt": b'{"_id": "a", "body": "The ferry is late."}\n{"_id": "b", "body": "The quay is wet.", "n": 2}\n',
    "twice.csv": b"uuid,text\n7,The ferry is late.\n7,The quay is wet.\n",
}


def shown_rows(page: Page) -> list[dict[str, tuple[str, str]]]:
    """Return the table's content for each document: role, type and cell by column."""
    region = page.get_by_role("region", name="First rows")
    heads = [
        (head.locator("span.clip").inner_text(), head.locator("span.role").inner_text(), head.locator("option:checked"))
        for head in region.get_by_role("columnheader").all()
    ]
    kinds = [(name, f"{role} {kind.inner_text()}" if kind.count() else role) for name, role, kind in heads]
    found = region.get_by_role("row").all()[1:]
    cells = [[cell.inner_text() for cell in row.get_by_role("cell").all()] for row in found]
    return [{name: (kind, cell) for (name, kind), cell in zip(kinds, row, strict=True)} for row in cells]


def as_shown(document: dict[str, Any], like: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return a stored document in the same form."""
    told = {}
    for name, (kind, cell) in like.items():
        value = document.get(kind) if kind in ("text", "id") else document["metadata"].get(name)
        types: dict[str, type | tuple[type, ...]] = {"number": (int, float), "true or false": bool}
        type_ = types.get(kind.removeprefix("metadata ").removesuffix(" (guessed)"), str)
        assert value is None or isinstance(value, type_) or kind == "metadata", (name, kind, value)
        same = str(value).lower() == cell.lower() or (value is None and not cell)
        told[name] = (kind, cell if same else str(value))
    return told


@pytest.mark.parametrize("name", FILES)
def test_what_the_preview_shows_is_stored(server: Running, page: Page, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    choose(page, tmp_path / name)
    expect(page.get_by_role("region", name="First rows")).to_be_visible()
    shown = shown_rows(page)
    page.get_by_role("button", name="Upload").click()
    corpus = Path(name).stem
    expect(job(page, corpus)).to_contain_text("succeeded")
    stored = server.client.get(f"/corpora/{corpus}/documents").json()["documents"]
    assert [as_shown(document, row) for document, row in zip(stored, shown, strict=True)] == shown
    if name == "excel.csv":
        assert stored[0]["metadata"] == {"Preis": 1.5, "PLZ": "01234", "seit": "2024-03-05", "offen": True}


def test_types_are_changed(server: Running, page: Page, tmp_path: Path) -> None:
    lines = "text,year,zip,size\nThe ferry is late.,1999,10115,7\nThe quay is wet.,2001,unknown,8\n"
    (tmp_path / "types.csv").write_text(lines)
    choose(page, tmp_path / "types.csv")
    expect(page.get_by_label("Type of year").locator("option:checked")).to_have_text("number (guessed)")
    page.get_by_label("Type of year").select_option("string")
    expect(page.get_by_label("Type of year")).to_be_focused()
    page.get_by_label("Type of zip").select_option("number")
    expect(page.get_by_text("line 3: zip: “unknown” is not a number")).to_be_visible()
    page.get_by_label("Skip invalid rows").check()
    page.get_by_role("button", name="Upload").click()
    expect(job(page, "types")).to_contain_text("succeeded")
    (stored,) = server.client.get("/corpora/types/documents").json()["documents"]
    assert stored["metadata"] == {"year": "1999", "zip": 10115, "size": 7}


def test_id_and_text_are_changed(server: Running, page: Page, tmp_path: Path) -> None:
    (tmp_path / "roles.csv").write_text("key,text,summary\na,The ferry is late.,Late.\nb,The quay is wet.,Wet.\n")
    choose(page, tmp_path / "roles.csv")
    expect(page.get_by_label("Id is in")).to_have_value("")
    page.get_by_label("Id is in").select_option("key")
    page.get_by_label("Text is in").select_option("summary")
    page.get_by_role("button", name="Upload").click()
    expect(job(page, "roles")).to_contain_text("succeeded")
    assert server.client.get("/corpora/roles/documents/b").json() == {
        "id": "b",
        "text": "Wet.",
        "metadata": {"text": "The quay is wet."},
    }


def test_lines_of_json_are_kept_as_texts_where_that_is_asked_for(server: Running, page: Page, tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text('{"text": "The ferry is late."}\n')
    choose(page, tmp_path / "raw.txt")
    expect(page.get_by_label("Read as")).to_have_value("ndjson")
    page.get_by_label("Read as").select_option("text")
    page.get_by_role("button", name="Upload").click()
    expect(job(page, "raw")).to_contain_text("succeeded")
    (stored,) = server.client.get("/corpora/raw/documents").json()["documents"]
    assert stored["text"] == '{"text": "The ferry is late."}'


def test_other_fields_of_json_are_metadata(server: Running, page: Page, tmp_path: Path) -> None:
    lines = [b'{"text": "The ferry is late.", "port": 1}', b'{"text": "The harbour is full.", "metadata": {"port": 2}}']
    (tmp_path / "fields.jsonl").write_bytes(b"\n".join(lines))
    choose(page, tmp_path / "fields.jsonl")
    headers = page.get_by_role("region", name="First rows").get_by_role("columnheader")
    expect(headers).to_have_text(["texttext", "portmetadata"])
    page.get_by_role("button", name="Upload").click()
    expect(job(page, "fields")).to_contain_text("succeeded")
    stored = page.request.get(f"{server.address}/corpora/fields/documents").json()["documents"]
    assert [one["metadata"] for one in stored] == [{"port": 1}, {"port": 2}]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.txt", b"", "contains no documents"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not a text file"),
        ("twice.csv", b"text,text\na,b\n", "twice"),
        ("packed.zst", b"\x28\xb5\x2f\xfd1234", "curl"),
        ("numbers.json", b"17", "documents"),
        ("broken.gz", b"\x1f\x8b\x08\0junk that is no gzip at all", "can't be read"),
    ],
)
def test_a_file_that_is_none_says_why(page: Page, tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    choose(page, tmp_path / name)
    expect(page.get_by_role("alert")).to_contain_text(says)
    expect(page.get_by_label("Choose a file")).to_be_attached()


def test_wrong_rows_are_named_by_their_lines(page: Page, tmp_path: Path) -> None:
    lines = ["text,port", *(f"The ferry {i} is late.,{i}" for i in range(300)), "one field", "The harbour is full.,9"]
    (tmp_path / "ports.csv").write_text("\n".join(lines))
    choose(page, tmp_path / "ports.csv")
    expect(page.get_by_text("line 302: has 1 fields")).to_be_visible()
    page.get_by_role("button", name="Upload").click()
    expect(job(page, "ports")).to_contain_text("1 row was left out")
    job(page, "ports").get_by_text("1 row was left out").click()
    expect(job(page, "ports").get_by_text("line 302: has 1 fields")).to_be_visible()
    choose(page, tmp_path / "ports.csv")
    page.get_by_label("Corpus", exact=True).fill("strict")
    page.get_by_label(re.compile("Skip invalid rows")).uncheck()
    page.get_by_role("button", name="Upload").click()
    expect(job(page, "strict")).to_contain_text("Nothing was stored")
    expect(job(page, "strict")).to_contain_text("line 302")


def test_rows_are_not_left_out_of_a_file_in_another_encoding_unless_asked(page: Page, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("Die Fähre ist spät.\nThe harbour is full.\n".encode("latin-1"))
    choose(page, tmp_path / "latin.txt")
    expect(page.get_by_label("Charset")).to_have_value("windows-1252")
    page.get_by_label("Charset").select_option("utf-8")
    expect(page.get_by_text("not all of it is utf-8")).to_be_visible()
    expect(page.get_by_label(re.compile("Skip invalid rows"))).not_to_be_checked()


def test_a_text_that_is_read_from_the_right_begins_there(page: Page, tmp_path: Path) -> None:
    (tmp_path / "ports.csv").write_text(
        "text,year\nالعبارة متأخرة (HTML 5).,2021\nThe harbour is very full today and so is the ferry,2020\n"
    )
    choose(page, tmp_path / "ports.csv")
    cell = page.locator("td.text .cell").first
    expect(cell).to_be_visible()
    gaps = cell.evaluate("""cell => {
        const words = document.createRange(); words.selectNodeContents(cell);
        const inner = words.getBoundingClientRect(), outer = cell.getBoundingClientRect();
        return [inner.left - outer.left, outer.right - inner.right];
    }""")
    assert gaps[1] < 2 and gaps[0] > 20


def test_names_are_shown_as_they_are(page: Page, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>.csv"
    (tmp_path / name).write_text(f'text,"{EVIL.replace(chr(34), chr(34) * 2)}"\nboiler,"<b>bold</b>"\n')
    choose(page, tmp_path / name)
    expect(page.get_by_role("heading", level=2, name=name)).to_be_visible()
    expect(page.get_by_role("columnheader").filter(has_text=EVIL)).to_be_visible()
    expect(page.get_by_role("cell", name="<b>bold</b>")).to_be_visible()
    page.get_by_label("Corpus", exact=True).fill("named")
    page.get_by_role("button", name="Upload").click()
    expect(job(page, "named")).to_contain_text("succeeded")
    assert page.locator("img, main b").count() == 0


def test_a_name_that_no_corpus_can_have_is_not_sent(page: Page, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The ferry is late.")
    choose(page, tmp_path / "a.txt")
    page.get_by_label("Corpus", exact=True).fill("../etc/passwd")
    expect(page.get_by_text("A name is letters, digits")).to_be_visible()
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("region", name="First rows")).to_be_visible()


def test_a_line_longer_than_what_is_looked_at_is_not_taken_for_a_wrong_one(page: Page, tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text('{"text": "' + "The ferry is late. " * 400_000 + '"}\n')
    choose(page, tmp_path / "long.jsonl")
    expect(page.get_by_role("heading", level=2, name="long.jsonl")).to_be_visible()
    expect(page.get_by_text("Invalid rows in the preview")).to_have_count(0)
    expect(page.get_by_label(re.compile("Skip invalid rows"))).not_to_be_checked()


def test_a_file_that_is_read_otherwise_keeps_its_corpus(page: Page, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,port\nThe ferry is late.,1\n")
    choose(page, tmp_path / "a.csv")
    corpus, formats = page.get_by_label("Corpus", exact=True), page.get_by_label("Read as")
    corpus.fill("mine")
    formats.select_option("json")
    expect(page.get_by_role("alert")).to_contain_text("A JSON file must contain")
    expect(formats).to_have_value("csv")
    expect(corpus).to_have_value("mine")
    formats.select_option("text")
    expect(page.get_by_role("region", name="First rows")).to_contain_text("The ferry is late.,1")
    expect(corpus).to_have_value("mine")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_pasted_text_that_cannot_be_read_stays(page: Page) -> None:
    page.get_by_role("button", name="Paste text").click()
    text = '{\n  "docs": [{"text": "The ferry is late."}]\n}'
    page.get_by_label("Texts").fill(text)
    page.get_by_role("button", name="Look at it").click()
    expect(page.get_by_role("alert")).to_contain_text("A JSON file must contain")
    expect(page.get_by_label("Texts")).to_have_value(text)


def test_a_written_text_stays_until_it_is_sent(server: Running, page: Page) -> None:
    page.get_by_role("button", name="Paste text").click()
    page.get_by_label("Texts").fill("The ferry is late.")
    open_view(page, "Search")
    open_view(page, "Corpora")
    expect(page.get_by_label("Texts")).to_have_value("The ferry is late.")
    page.get_by_role("button", name="Look at it").click()
    page.get_by_label("Corpus", exact=True).fill("written")
    page.get_by_role("button", name="Upload").click()
    page.get_by_role("button", name="Paste text").click()
    expect(page.get_by_label("Texts")).to_have_value("")
    expect(corpus_card(page, "written")).to_contain_text("Documents1")


def test_two_files_at_once_leave_the_one_that_is_looked_at(page: Page, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The ferry is late.")
    choose(page, tmp_path / "a.txt")
    page.get_by_label("Corpus", exact=True).fill("mine")
    dropped = page.evaluate_handle(
        "() => { const data = new DataTransfer();"
        " for (const name of ['b', 'c']) data.items.add(new File(['x'], name)); return data; }"
    )
    page.locator("main").dispatch_event("drop", {"dataTransfer": dropped})
    expect(page.get_by_role("alert")).to_have_text("One file at a time, please.")
    expect(page.get_by_label("Corpus", exact=True)).to_have_value("mine")


def test_a_dropped_file(page: Page) -> None:
    expect(page.get_by_label("Choose a file")).to_be_attached()
    dropped = page.evaluate_handle(
        "() => { const data = new DataTransfer();"
        " data.items.add(new File(['text\\nThe ferry is late.\\n'], 'dropped.csv')); return data; }"
    )
    page.locator("main").dispatch_event("drop", {"dataTransfer": dropped})
    expect(page.get_by_role("heading", level=2, name="dropped.csv")).to_be_visible()
    expect(page.get_by_role("region", name="First rows")).to_contain_text("The ferry is late.")


def test_the_keyboard_alone_pastes_uploads_and_finds(page: Page, tab_to: Callable[[Page, Locator], None]) -> None:
    tab_to(page, page.get_by_role("button", name="Paste text"))
    page.keyboard.press("Enter")
    page.keyboard.type("text,port\nThe lighthouse is dark.,Brest\nThe quay is wet.,Emden\n")
    tab_to(page, page.get_by_role("button", name="Look at it"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_label("Corpus", exact=True))
    page.keyboard.press("Control+A")
    page.keyboard.type("typed")
    tab_to(page, page.get_by_role("button", name="Upload"))
    page.keyboard.press("Enter")
    expect(job(page, "typed")).to_contain_text("succeeded")
    tab_to(page, job(page, "typed").get_by_role("link", name="Search it"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("combobox", name="Corpus")).to_have_value("typed")
    tab_to(page, page.get_by_role("searchbox"))
    page.keyboard.type("lighthouse")
    expect(page.get_by_role("main")).to_contain_text("The lighthouse is dark.")


def test_a_hundred_megabytes_pass_as_a_stream(browser: Browser, page: Page, tmp_path: Path) -> None:
    """Check that the page does not load the file into memory. The upload is then cancelled."""
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        for i in range(20_000):
            file.write(f"{i} ".encode() + b"boiler radiator chimney thermostat furnace " * 118 + b"\n")
    assert path.stat().st_size > 100 * MB
    before = _peak(page)
    choose(page, path)
    expect(page.get_by_role("region", name="First rows")).to_be_visible()
    page.get_by_role("button", name="Upload").click()
    cancel = page.get_by_role("button", name="Cancel: Adding documents to large")
    expect(cancel).to_be_visible(timeout=60_000)
    assert _peak(page) - before < 80 * MB
    cancel.click()
    expect(job(page, "large")).to_contain_text("cancelled")


def _peak(page: Page) -> int:
    """Return the maximum memory in bytes of the largest renderer process, which contains all pages of this test."""
    children = psutil.Process().children(recursive=True)
    renderers = [child for child in children if "--type=renderer" in child.cmdline()]
    status = [Path(f"/proc/{child.pid}/status").read_text() for child in renderers]
    return max(1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", one)[0]) for one in status)
