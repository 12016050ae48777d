"""What the page says of a file before it is sent is what the server reads."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page

from serving.errors import ServiceError
from tests.serving.conftest import Running
from tests.serving.ingest.reading import read
from tests.web.conftest import Visit

pytestmark = pytest.mark.slow
Preview = Callable[[str, str], dict[str, Any]]

LOOK = """async ([name, text]) => {
  const { preview } = await import("./web/preview.js");
  try {
    const { columns, rows, problems, count } = await preview(new File([text], name));
    return { columns, rows, problems, count };
  } catch (error) {
    return { refused: error.message };
  }
}"""
FIELDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r\ufffd"), max_size=12)
ROWS = st.lists(st.lists(FIELDS, min_size=1, max_size=4), min_size=1, max_size=6)
FORMATS = {"a.csv": "csv", "a.jsonl": "ndjson", "a.txt": "text", "a.json": "json"}


@pytest.fixture
def preview(server: Running, visit: Visit) -> Preview:
    page: Page = visit(server.address, "?view=corpora")
    return lambda name, text: page.evaluate(LOOK, [name, text])


def of_the_server(name: str, text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The documents, and the places of the rows that are none."""
    rows = read(text.encode(), FORMATS[name])
    bad = [row.place for row in rows if not _is_document(row.value)]
    return [row.value for row in rows if _is_document(row.value)], bad


def documents(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What the page says that the first rows become."""
    whole = []
    for row in found.get("rows", []):
        document: dict[str, Any] = {"id": None, "text": None, "metadata": {}}
        for column, cell in zip(found["columns"], row, strict=True):
            if column["role"] == "metadata":
                document["metadata"][column["name"]] = cell
            else:
                document[column["role"]] = cell or (None if column["role"] == "id" else "")
        whole.append(document)
    return whole


def agree(found: dict[str, Any], name: str, text: str) -> None:
    good, bad = of_the_server(name, text)
    assert found.get("count", 0) == len(good)
    assert [re.sub(r"\..*", "", one["place"]) for one in found.get("problems", [])] == bad
    expected = [{"id": one.get("id"), "text": one["text"], "metadata": one.get("metadata", {})} for one in good]
    assert documents(found) == expected[:5]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(table=ROWS, delimiter=st.sampled_from(",;\t"), end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans())
def test_csv(preview: Preview, table: list[list[str]], delimiter: str, end: str, bom: bool) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    writer.writerows([["lang", "id", "text", "year"], *table])
    text = "\ufeff" * bom + out.getvalue()
    agree(preview("a.csv", text), "a.csv", text)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(FIELDS, min_size=1, max_size=8), end=st.sampled_from(["\n", "\r\n"]))
@example(lines=["\x1f", "a", "\ufeff"], end="\n")  # space to Python, and to JavaScript
def test_text(preview: Preview, lines: list[str], end: str) -> None:
    text = end.join(line.replace("\n", " ") for line in lines)
    agree(preview("a.txt", text), "a.txt", text)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries({"text": FIELDS | st.integers()}, optional={"id": FIELDS, "metadata": st.just({})}),
        min_size=1,
        max_size=6,
    ),
    junk=st.sampled_from(["", "\n", "{\n", "[1]\n", "null\n"]),
)
def test_json_lines(preview: Preview, rows: list[dict[str, Any]], junk: str) -> None:
    rows = [{**row, "id": row.get("id") or None} for row in rows]
    text = junk + "\n".join(json.dumps(row) for row in rows)
    agree(preview("a.jsonl", text), "a.jsonl", text)


@pytest.mark.parametrize(
    "text", ['["a", {"text": "b"}, 5, {"no": ","}, [1, 2]]', '{"documents": ["a", "b, c"], "x": [1]}', "[]"]
)
def test_json_names_each_wrong_row(preview: Preview, text: str) -> None:
    found = preview("a.json", text)
    good, bad = of_the_server("a.json", text)
    assert [one["place"] for one in found.get("problems", [])] == bad
    assert [document["text"] for document in documents(found)] == [one["text"] for one in good]


def test_types_that_a_header_names(preview: Preview) -> None:
    found = preview("a.csv", "body:string,year:number,open:boolean,a:b\nThe quay.,1,true,c\n")
    told = [(column["name"], column["type"], column["role"]) for column in found["columns"]]
    assert told == [
        ("body", "string", "text"),
        ("year", "number", "metadata"),
        ("open", "boolean", "metadata"),
        ("a:b", None, "metadata"),
    ]


def _is_document(value: object) -> bool:
    return not isinstance(value, ServiceError) and isinstance(value, dict) and isinstance(value.get("text"), str)
