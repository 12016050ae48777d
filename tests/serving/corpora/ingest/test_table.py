"""CSV: what was written is read, and what is wrong is told by the line that the row begins in."""

from __future__ import annotations

import csv
import io
from datetime import date, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.ingest.documents import checked, random_names
from serving.corpora.ingest.vectors import VectorRule
from serving.errors import Empty, Invalid, Malformed, ServiceError, TooLarge
from tests.serving.corpora.ingest.reading import SETTINGS, read, values

FIELDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\r"), max_size=20)
TABLES = st.lists(st.lists(FIELDS, min_size=4, max_size=4), max_size=8)


@given(table=TABLES, delimiter=st.sampled_from(",;\t"), end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans())
def test_csv(table: list[list[str]], delimiter: str, end: str, bom: bool) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerow(["lang", "id", "text", "a, long; name"] if delimiter == "\t" else ["lang", "id", "text", "year"])
    lines = []
    for fields in table:
        lines.append(out.getvalue().count("\n") + 1)
        writer.writerow(fields)
    body = ("\ufeff" * bom + out.getvalue()).encode()
    found = read(body, "csv")
    held = [(line, row) for line, row in zip(lines, table, strict=True) if "".join(row).strip()]
    assert [row.place for row in found] == [f"line {line}" for line, _ in held]
    for row, (_, (lang, id, text, year)) in zip(found, held, strict=True):
        assert row.value["id"] == (id or None)
        assert row.value["text"] == text
        assert list(row.value["metadata"].values()) == [lang, year]


def test_columns_that_are_named() -> None:
    body = b"key;title;id\n1;A;x\n"
    assert values(read(body, "csv", text_column="title", id_column="key")) == [
        {"id": "1", "text": "A", "metadata": {"id": "x"}}
    ]
    assert values(read(body, "csv", text_column="title")) == [{"id": "x", "text": "A", "metadata": {"key": "1"}}]


@pytest.mark.parametrize("header", ["Text;ID", " TEXT ; id", '"text";"Id "'])
def test_text_and_id_are_found_in_any_case(header: str) -> None:
    (row,) = read(f"{header}; Year :number\na;1;1999\n".encode(), "csv")
    assert row.value == {"id": "1", "text": "a", "metadata": {"Year": 1999}}
    (row,) = read(f"{header}; Year\na;1;1999\n".encode(), "csv", text_column="year", id_column="TEXT")
    assert (row.value["id"], row.value["text"]) == ("a", "1999")
    assert (row.text_field, row.id_field.casefold()) == ("Year", "text")


def test_a_name_as_it_is_asked_for_goes_before_one_in_another_case() -> None:
    assert values(read(b"Text,text\na,b\n", "csv")) == [{"id": None, "text": "b", "metadata": {"Text": "a"}}]


@pytest.mark.parametrize("first", ["sep=;", "SEP=;", '"sep=;"', "sep=|", "sep=\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_first_line_may_name_the_separator(first: str, end: str) -> None:
    mark = first.strip('"')[4]
    body = end.join([first, f"id{mark}text", f"1{mark}a, b", f"2{mark}c", f"3{mark}d{mark}e"])
    first_row, second, third = read(("\ufeff" + body).encode(), "csv")
    assert first_row.value == {"id": "1", "text": "a, b", "metadata": {}}
    assert (first_row.place, second.place, str(third.value)) == (
        "line 3",
        "line 4",
        "has 3 fields, but the header has 2",
    )


def test_columns_without_a_name_are_left_out() -> None:
    body = b",text,year,,\n0,a,1999,,\n1,b,2000,x,y\n"
    assert [row["metadata"] for row in values(read(body, "csv"))] == [{"year": "1999"}, {"year": "2000"}]


def test_empty_fields_behind_the_last_column_and_rows_of_nothing_are_passed_over() -> None:
    body = b"text,n\na,1,,\n,,\n , \nb,2\n\nc,3,4\n"
    found = {row.place: row.value for row in read(body, "csv")}
    assert list(found) == ["line 2", "line 5", "line 7"]
    assert found["line 2"] == {"id": None, "text": "a", "metadata": {"n": "1"}}
    assert str(found["line 7"]) == "has 3 fields, but the header has 2"


def test_spaces_before_fields_are_left_out_where_the_header_has_them() -> None:
    body = b'id, text, n\n1, "a, b", 2\n'
    assert values(read(body, "csv")) == [{"id": "1", "text": "a, b", "metadata": {"n": "2"}}]
    assert values(read(b"id,text\n1, a\n", "csv")) == [{"id": "1", "text": " a", "metadata": {}}]
    assert values(read(b"text\n a\n", "csv")) == [{"id": None, "text": " a", "metadata": {}}]


@pytest.mark.parametrize(("format", "body"), [("csv", b"id,text\na,b\n"), ("ndjson", b'{"id": "a", "text": "b"}\n')])
def test_a_text_is_the_id_where_it_is_named_as_both(format: Any, body: bytes) -> None:
    found = {"text": "a", "metadata": {"text": "b"}}
    assert values(read(body, format, text_column="id")) == [found | {"id": None}]
    assert values(read(body, format, text_column="id", id_column="id")) == [found | {"id": "a"}]


@pytest.mark.parametrize(
    ("body", "columns", "says"),
    [
        (b"", {}, "line 1: must begin with a header"),
        (
            b"a,b\n1,2\n",
            {},
            r"text_column: there is no column 'text', only 'a', 'b'\. Select it by \?text_column=NAME \(--text-col",
        ),
        (
            b"year,Txt:string\n1,2\n",
            {},
            r"there is no column 'text', only 'year', 'Txt'\. Did you mean 'Txt'\? Select it by \?text_column=Txt ",
        ),
        (b"Text,TEXT\n", {}, "there is no column 'text', only 'Text', 'TEXT'"),
        (
            b"text\na\n",
            {"id_column": "ids"},
            r"id_column: there is no column 'ids', only 'text'\. Select it by \?id_column",
        ),
        (b"id|text\n1|a\n", {}, r"a single column 'id\|text': separate columns by commas, semicolons or tabs"),
        ("id,text\n1,a\n".encode("utf-16-le"), {}, "has NUL characters: give the encoding, .*charset=utf-16le"),
        (b'{"documents": [{"text": "a"}]}', {}, "text_column: the header looks like JSON: send it as application/json"),
        (b"sep=;\n", {}, "line 2: must begin with a header"),
        (b"sep=;\ntext;a;a\n", {}, "line 2: a column occurs twice"),
        (b"text,a,a\n", {}, "line 1: a column occurs twice"),
        (b"text,a:number,a\n", {}, "line 1: a column occurs twice"),
        (b'text,"a\n', {}, "line 1: not a header of CSV"),
        (b"text,\xff\n", {}, "line 1: not UTF-8: byte 6 is 0xff"),
    ],
)
def test_headers_that_are_none(body: bytes, columns: dict[str, Any], says: str) -> None:
    with pytest.raises(ServiceError, match=says):
        read(body, "csv", **columns)


NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBERS.map(lambda number: number + 0), st.booleans())  # no zero has a sign
def test_columns_that_name_their_type(number: float, yes: bool) -> None:
    body = f"id:string,text,year:number,open:boolean,a:b,n:number\n1,a, {number} ,{yes},{number},{number!r}\n"
    (row,) = values(read(body.encode(), "csv"))
    assert row == {"id": "1", "text": "a", "metadata": {"year": number, "open": yes, "a:b": str(number), "n": number}}
    assert type(row["metadata"]["year"]) is type(number)


def test_types_are_found_in_all_fields_of_a_column() -> None:
    body = (
        b"text,year,price,open,zip,phone,late,name:string,n:number,none,day,due\n"
        b"a,1999, 1.5 ,TRUE,01234,+49,7,5,6,, 0001-01-01,2024-03-05\n"
        b"b,,-2e3,false,12345,49,8,7,8,,2024-03-05 10:00:00,03/04/2024\n"
        b"c,2001,0,,10115,50,seven,8,9, ,,\n"
    )
    first, second, third = (row["metadata"] for row in values(read(body, "csv", column_types="auto")))
    others = {"zip": "01234", "phone": "+49", "late": "7", "name": "5", "n": 6, "none": "", "due": "2024-03-05"}
    assert first == {"year": 1999, "price": 1.5, "open": True, "day": "0001-01-01"} | others
    assert second["day"] == "2024-03-05 10:00:00" and "day" not in third and third["due"] == ""
    assert second["price"] == -2000.0 and "year" not in second and "open" not in third
    assert values(read(body, "csv"))[0]["metadata"]["year"] == "1999"


@pytest.mark.parametrize("before", [b"\n", b"\r\n \n", b"sep=,\n\n"])
def test_blank_lines_before_the_header_are_passed_over(before: bytes) -> None:
    (row,) = read(before + b"text,a\nx,1\n", "csv")
    assert (row.place, row.value["metadata"]) == (f"line {before.count(10) + 2}", {"a": "1"})
    with pytest.raises(Empty, match="must begin with a header"):
        read(before, "csv")


def test_types_of_some_columns_are_named() -> None:
    """They count for more than the header's, and the others have the header's alone."""
    body = b"text,year,zip,open,late:number,n:number,m,s:string\na,1999,10115,true,7,8,9,5\n"
    types = {"year": "number", "zip": "string", "open": "auto", "late": "string", "n": "auto", "s": "auto"}
    (row,) = values(read(body, "csv", column_types=types))
    assert row["metadata"] == {"year": 1999, "zip": "10115", "open": True, "late": "7", "n": 8, "m": "9", "s": "5"}


@pytest.mark.parametrize("name", ["yaer", "text"])
def test_a_type_of_no_column_of_metadata_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match=f"column_types: '{name}' is not a metadata column; these are 'year'"):
        read(b"text,year\na,1999\n", "csv", column_types={name: "number"})


ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=st.none() | ZONES) | st.dates())
def test_a_column_of_dates_keeps_them_as_they_are_written(day: date) -> None:
    written = day.isoformat()
    for body, types in ((f"text,day:date\na, {written} \n", "header"), (f"text,day\na,{written}\n", "auto")):
        assert values(read(body.encode(), "csv", column_types=types))[0]["metadata"] == {"day": written}


def test_types_hold_for_rows_that_are_wrong() -> None:
    body = b'text,n\na,1\nb,1,2\n"c" d,x\ne,2\n'
    found = [row.value for row in read(body, "csv", column_types="auto")]
    assert [one["metadata"] for one in found if isinstance(one, dict)] == [{"n": 1}, {"n": 2}]


def test_a_field_without_its_number_is_absent() -> None:
    body = b"text,n:number,b:boolean,d:date,s:string\na,, , ,\n"
    assert values(read(body, "csv")) == [{"id": None, "text": "a", "metadata": {"s": ""}}]


@pytest.mark.parametrize(
    ("column", "field", "says"),
    [
        *(
            ("n:number", field, "is not a number")
            for field in ("x", "nan", "inf", "1_000", "1 000", "0x1", "٣", "1e", ".")
        ),
        ("n:number", str(2**64), "is not from -2^63 to 2^64 - 1"),
        ("n:number", "-" + "9" * 5000, "is not from -2^63 to 2^64 - 1"),
        ("n:number", "1e999", "is too large a number"),
        *(("n:boolean", field, "is neither true nor false") for field in ("1", "yes", "truee")),
        *(
            ("n:date", field, "is not a date such as 2024-03-05 or 2024-03-05T08:30:00Z")
            for field in ("03/04/2024", "2024-02-30", "2024-03", "20240305", "1709600000", "2024-03-05T24:00", "today")
        ),
    ],
)
def test_a_field_of_another_type_is_told_by_line_and_column(column: str, field: str, says: str) -> None:
    body = f"text,{column}\na,\nb,{field}\n".encode()
    good, bad = checked(read(body, "csv"), SETTINGS, random_names, VectorRule("c", own=False))
    assert good.document and not good.document.metadata
    assert bad.error and bad.error.message == f"line 3: n: {field[:40]!r} {says}"


def test_zeros_before_a_number() -> None:
    body = "text,n:number\n" + "\n".join(f"a,{one}" for one in ("0" * 50 + "7", "+7", "7.", ".5", "5e-1", "-0"))
    assert [row["metadata"]["n"] for row in values(read(body.encode(), "csv"))] == [7, 7, 7, 0.5, 0.5, 0]


def test_bad_rows_of_csv_are_told_by_the_line_they_begin_in() -> None:
    body = b'text,n\n"two\nlines",1\nonly\n"bad" quote,2\n"\xff",3\n\nlast,"4\n\xfe"\ngood,5\n'
    found = {row.place: row.value for row in read(body, "csv")}
    assert list(found) == ["line 2", "line 4", "line 5", "line 6", "line 8", "line 10"]
    assert found["line 2"]["text"] == "two\nlines"
    assert "has 1 fields, but the header has 2" in str(found["line 4"])
    assert "not CSV" in str(found["line 5"])
    assert str(found["line 6"]).startswith("not UTF-8: byte 2 is 0xff")
    assert "not UTF-8: byte 1 is 0xfe (of line 9)" in str(found["line 8"])
    assert found["line 10"]["text"] == "good"


def test_what_an_open_quote_takes_with_it_is_told() -> None:
    """A caller who keeps the good rows is else not told of rows that are gone."""
    found = read(b'text\ngood\n"open\nalso good\nthis, too\n', "csv")
    assert found[0].value["text"] == "good"
    assert (found[1].place, len(found)) == ("line 3", 2)
    assert str(found[1].value).endswith("the lines up to 5 were read as part of this row")


def test_a_column_may_have_a_name_of_two_lines() -> None:
    found = read(b'"te\nxt",text\na,b\n"c\nd",e\n', "csv")
    assert [(row.place, row.value["text"], row.value["metadata"]) for row in found] == [
        ("line 3", "b", {"te\nxt": "a"}),
        ("line 4", "e", {"te\nxt": "c\nd"}),
    ]


@pytest.mark.parametrize("body", [b"id,text\r1,one\r2,two\r", b"id,text\n1,one\r2,two\n"])
def test_lines_that_end_in_cr_alone_are_told_so(body: bytes) -> None:
    says = "a line ends with CR only: end lines with LF or CR LF"
    if b"\n" in body:
        assert str(read(body, "csv")[0].value) == f"not CSV: {says}"
    else:
        with pytest.raises(Malformed, match=f"line 1: not a header of CSV: {says}$"):
            read(body, "csv")


def test_a_quote_that_is_left_open_ends_the_reading() -> None:
    body = b'text\ngood\n"open\n' + b"a line of text\n" * 300_000
    with pytest.raises(TooLarge, match=r"line 3: more than the .* is a quote left open"):
        read(body, "csv")
    assert "not CSV" in str(read(b'text\n"open\na\n', "csv")[0].value)


def test_no_row_is_found_in_the_rest_of_a_line_that_is_too_long() -> None:
    long = b"x" * 3_300_000
    for body in (b'text,id\na,b\n"' + long + b'\ntail,1\nlast",2\n', b"text,id\na,b\n" + long + b",1\nlast,2\n"):
        with pytest.raises(TooLarge, match="line 3: more than the"):
            read(body, "csv")
