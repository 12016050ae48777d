"""Tests of the page's preview of a file, which must agree with what the server reads."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page

from serving.corpora.ingest.documents import checked, random_names, unrepeated
from serving.corpora.ingest.uploading import Options, rows
from serving.corpora.ingest.vectors import VectorRule
from serving.corpora.values import Document
from serving.operations.clock import moment
from serving.settings import Settings
from tests.serving.conftest import Running
from tests.web.conftest import Visit

pytestmark = pytest.mark.slow
Preview = Callable[..., dict[str, Any]]

LOOK = """async ([name, base64, types, given]) => {
  const { preview } = await import("./web/preview.js");
  try {
    const found = await preview(new File([Uint8Array.fromBase64 ? Uint8Array.fromBase64(base64)
      : Uint8Array.from(atob(base64), (one) => one.charCodeAt(0))], name), given);
    return { ...found.as({ ...found, types: new Map(types) }), ...found, as: null };
  } catch (error) {
    return { refused: error.message };
  }
}"""
FIELDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r\ufffd"), max_size=12)
ROWS = st.lists(st.lists(FIELDS, min_size=1, max_size=4), min_size=1, max_size=6)
VALUES = st.one_of(
    FIELDS,
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(
        ["true", "FALSE", " 1 ", "007", "+1", "1e5", "-0", ".5", "", str(2**64 - 1), str(2**64), "2024-03-05"]
    ),
    st.from_regex(
        r" ?[0-9]{4}-[01][0-9]-[0-3][0-9]"
        r"([Tt ][012][0-9]:[0-9]{2}(:[0-6][0-9](\.[0-9]+)?)?([Zz]|[+-][012][0-9]:?[0-9]{2})?)? ?",
        fullmatch=True,
    ),
)


@pytest.fixture
def preview(server: Running, visit: Visit) -> Preview:
    page: Page = visit(server.address, "?view=corpora")

    def look(name: str, body: str | bytes, types: Sequence[tuple[str, str]] = (), **given: str) -> dict[str, Any]:
        raw = body.encode() if isinstance(body, str) else body
        found: dict[str, Any] = page.evaluate(LOOK, [name, base64.b64encode(raw).decode(), types, given])
        return found

    return look


def of_the_server(found: dict[str, Any], body: bytes, types: Mapping[str, str]) -> tuple[list[Document], list[str]]:
    """Return the server's documents, and the positions of invalid rows, for the page's request."""
    media, _, charset = found["media"].partition(";charset=")
    names = {f"{role}_column": found[role] for role in ("text", "id") if found.get(role) not in (None, "", role)}
    if found["format"] == "csv":
        columns = [one["name"] for one in found["columns"] if one["role"] == "metadata"]
        names["column_types"] = {name: types.get(name, "auto") for name in columns} if types else "auto"
    options = Options.of_media(media, charset or None, **names)
    read = list(
        unrepeated(
            checked(rows(io.BytesIO(body), options, Settings()), Settings(), random_names, VectorRule("c", own=False))
        )
    )
    return [one.document for one in read if one.document], [one.place for one in read if one.error]


def is_shown(document: Document, columns: list[dict[str, Any]], cells: list[str]) -> bool:
    """Return whether the preview shows what is stored, including the types of CSV."""
    for column, cell in zip(columns, cells, strict=True):
        if column["role"] == "text":
            told: Any = document.text == cell
        elif column["role"] == "id":
            told = not cell or document.id == cell
        elif column["role"] == "expiry":
            told = document.expires_at == (moment(cell, "expires_at") if cell else None)
        else:
            value = document.metadata.get(column["name"])
            type = column.get("type") or column.get("guess")
            if type == "number":
                told = value is None if not cell else value == (int(cell) if isinstance(value, int) else float(cell))
            elif type == "boolean":
                told = value is None if not cell else value is (cell.lower() == "true")
            elif type == "date":
                told = value == (cell or None)
            elif isinstance(value, str) or value is None:
                told = (value or "") == cell
            else:
                told = value == json.loads(cell)
        if not told:
            return False
    return True


def agree(found: dict[str, Any], body: str | bytes, types: Mapping[str, str] = MappingProxyType({})) -> None:
    raw = body.encode() if isinstance(body, str) else body
    if "contains no documents" in found.get("refused", ""):
        format: Any = "text" if found["refused"].startswith("a.txt") else "csv"
        assert list(rows(io.BytesIO(raw), Options(format=format), Settings())) == []
        return
    good, bad = of_the_server(found, raw, types)
    assert [one["place"] for one in found["problems"]] == bad
    assert found["count"] == len(good)
    for document, cells in zip(good, found["rows"], strict=False):
        assert is_shown(document, found["columns"], cells), (document, found["columns"], cells)
    assert len(found["rows"]) == min(len(good), 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=ROWS, delimiter=st.sampled_from(",;\t"), end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans())
def test_csv(preview: Preview, table: list[list[str]], delimiter: str, end: str, bom: bool) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    writer.writerows([["lang", "id", "text", "year"], *table])
    text = "\ufeff" * bom + out.getvalue()
    agree(preview("a.csv", text), text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.sampled_from(
        [
            "text,a",
            "sep=;\ntext;a",
            "\n text, a",
            "\nsep=,\n\ntext,a",
            "a\tText",
            '"text",a,',
            "id,text",
            "a:number,text",
        ]
    ),
    body=st.text(st.sampled_from("""a1"", ,;\t\n\r"""), max_size=20),
)
@example(header="text,a", body='"a"b,1\nc,2')
@example(header="text, a", body='x,  "1, 2"\ny, "a""b"\nz, "open')
@example(header="text,a", body="a\rb,1\nc,2\r\r\n")
def test_csv_that_is_badly_written(preview: Preview, header: str, body: str) -> None:
    agree(preview("a.csv", f"{header}\n{body}"), f"{header}\n{body}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    columns=st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=3),
    asked=st.sampled_from([None, "string", "number", "boolean", "date", "auto"]),
    header=st.sampled_from(["", ":number", ":boolean", ":date", ":string", ":what"]),
)
@example(columns=[["1", "2"], ["true", ""], ["01", "1"], ["2024-03-05", "2024-03-05T10:00:00Z"]], asked=None, header="")
def test_types(preview: Preview, columns: list[list[str]], asked: str | None, header: str) -> None:
    out = io.StringIO(newline="")
    length = min(map(len, columns))
    table = [["text", *(f"c{i}{header if i == 0 else ''}" for i in range(len(columns)))]]
    csv.writer(out).writerows([*table, *([f"t{i}", *(one[i] for one in columns)] for i in range(length))])
    name = "c0:what" if header == ":what" else "c0"
    types = {name: asked} if asked else {}
    agree(preview("a.csv", out.getvalue(), [*types.items()] if asked != "auto" else []), out.getvalue(), types)


def test_the_time_of_expiry(preview: Preview) -> None:
    times = ("T08:30:00Z", " 08:30:00.5+02:00", "t08:30:00z", "", "T08:30Z", "T08:30:00", "T24:00:00Z")
    days = [f"{day}{time}" for day in ("2030-01-31", "2030-02-30", "soon") for time in times]
    table = "text,year,Expires_At\nThe ferry.,1999,\n" + "".join(f"a,1999,{day}\n" for day in days)
    found = preview("a.csv", table, [("year", "string")])
    assert [one["role"] for one in found["columns"]] == ["text", "metadata", "expiry"]
    agree(found, table, {"year": "string"})
    given: list[Any] = [*days, None, 17, ["2030-01-31T08:30:00Z"]]
    lines = "\n".join(json.dumps({"text": "a", "expires_at": one, "metadata": {"expires_at": 1}}) for one in given)
    agree(preview("a.jsonl", lines), lines)


def test_dates_are_told_apart(preview: Preview) -> None:
    found = preview("a.csv", "text,when,late,n\na,2024-03-05,5.3.2024,\nb,2024-03-05T10:00:00+02:00,2024-03-05,1\n")
    assert [one.get("guess") for one in found["columns"]] == [None, "date", "string", "number"]


def test_the_calendar(preview: Preview) -> None:
    years = ("0000", "0001", "1900", "2023", "2024", "9999")
    days = [f"{year}-{month:02}-{day:02}" for year in years for month in range(14) for day in range(33)]
    table = "text,day:date\n" + "".join(f"a,{day}\n" for day in days)
    agree(preview("a.csv", table), table)


@pytest.mark.parametrize(
    ("name", "body", "columns"),
    [
        ("a.csv", "Key,_id,Body,,\n1,a,The quay.,,\n1,b,The ferry.,,\n", ["Key", "_id id", "Body text"]),
        ("b.csv", "ID;Text\n1;The quay.\n2;The ferry.\n", ["ID id", "Text text"]),
        ("c.csv", "uuid,text\n1,The quay.\n1,The ferry.\n", ["uuid", "text text"]),
        ("d.csv", "a,b\nx,The longest one.\n", ["a", "b text"]),
        ("e.jsonl", '{"_id": "a", "body": "The quay.", "n": 1}\n', ["_id id", "body text", "n"]),
        ("f.json", '[{"id": 5, "text": "The quay."}, {"text": "The ferry."}]', ["id id", "text text"]),
    ],
)
def test_id_and_text_are_guessed(preview: Preview, name: str, body: str, columns: list[str]) -> None:
    found = preview(name, body)
    told = [f"{one['name']} {one['role']}".removesuffix(" metadata") for one in found["columns"]]
    assert told == columns
    agree(found, body)


@pytest.mark.parametrize(
    ("name", "body", "charset"),
    [
        ("a.csv", "text;price\nFähre – 5 €;1\n".encode("cp1252"), "windows-1252"),
        ("a.txt", "Fähre\nQuai\n".encode("latin-1"), "windows-1252"),
        ("b.csv", "text,a\nFähre,1\n".encode("utf-16"), "utf-16le"),
        ("b.jsonl", '{"text": "Fähre"}\n'.encode("utf-16"), "utf-16le"),
        ("b.csv", b"\xfe\xff" + "text,a\nFähre,1\n".encode("utf-16-be"), "utf-16be"),
        ("c.csv", "text,a\nFähre,1\n".encode("utf-16-le"), "utf-16le"),
        ("d.csv", "text,a\nFähre,1\n".encode(), "utf-8"),
    ],
)
def test_charsets(preview: Preview, name: str, body: bytes, charset: str) -> None:
    found = preview(name, body)
    assert (found["charset"], found["rows"][0][0][:5]) == (charset, "Fähre")
    agree(found, body)


@pytest.mark.parametrize(
    ("charset", "text"),
    [("windows-1251", "Паром"), ("shift_jis", "①番線"), ("gb18030", "渡轮"), ("euc-kr", "여객선 똠")],
)
def test_a_charset_that_is_chosen(preview: Preview, charset: str, text: str) -> None:
    python = {"shift_jis": "cp932", "euc-kr": "cp949"}.get(charset, charset)
    body = f"text,a\n{text},1\n".encode(python)
    found = preview("a.csv", body, charset=charset)
    assert found["rows"][0][0] == text
    agree(found, body)


@pytest.mark.parametrize(
    ("name", "body", "format"),
    [
        ("a.txt", '{"text": "a"}\n{"text": "b"}\n', "ndjson"),
        ("a.txt", '{"documents": [{"text": "a"}]}', "json"),
        ("a.txt", '[{"text": "a"}]', "json"),
        ("a.json", '{"text": "a"}\n{"text": "b"}\n', "ndjson"),
        ("a.txt", "[note] Buy milk.\n", "text"),
        ("a.txt", "{draft} Buy milk.\n", "text"),
    ],
)
def test_json_is_known_whatever_it_is_called(preview: Preview, name: str, body: str, format: str) -> None:
    found = preview(name, body)
    assert found["format"] == format
    agree(found, body)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(FIELDS, min_size=1, max_size=8), end=st.sampled_from(["\n", "\r\n"]))
@example(lines=["\x1f", "a", "\ufeff"], end="\n")  # Python and JavaScript treat this character as a space.
def test_text(preview: Preview, lines: list[str], end: str) -> None:
    text = end.join(line.replace("\n", " ") for line in lines)
    agree(preview("a.txt", text, format="text"), text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"text": FIELDS | st.integers()},
            optional={"id": FIELDS | st.integers(), "views": st.integers(), "metadata": st.just({"of": [2**53 + 1]})},
        ),
        min_size=1,
        max_size=6,
    ),
    junk=st.sampled_from(["", "\n", "{\n", "[1]\n", "null\n"]),
)
@example(rows=[{"text": -(2**63) - 1, "id": "0"}], junk="")
@example(rows=[{"text": 2**53 + 1, "id": "0"}, {"text": "a", "id": 2**63, "views": 2**64}], junk="")
def test_json_lines(preview: Preview, rows: list[dict[str, Any]], junk: str) -> None:
    rows = [{**row, "id": row.get("id") or None} for row in rows]
    text = junk + "\n".join(json.dumps(row) for row in rows)
    agree(preview("a.jsonl", text), text)


@pytest.mark.parametrize(
    "text", ['["a", {"text": "b"}, 5, {"no": ","}, [1, 2]]', '{"documents": ["a", "b, c"], "x": [1]}']
)
def test_json_names_each_wrong_row(preview: Preview, text: str) -> None:
    agree(preview("a.json", text), text)


def test_types_that_a_header_names(preview: Preview) -> None:
    found = preview("a.csv", "body:string,year:number,open:boolean,a:b\nThe quay.,1,true,c\n")
    told = [(column["name"], column.get("type"), column["role"]) for column in found["columns"]]
    assert told == [
        ("body", "string", "text"),
        ("year", "number", "metadata"),
        ("open", "boolean", "metadata"),
        ("a:b", None, "metadata"),
    ]
