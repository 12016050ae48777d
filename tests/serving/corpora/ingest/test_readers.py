"""Formats: what they hold comes back, bad rows are named by line, and nothing is read whole."""

from __future__ import annotations

import difflib
import gzip
import json
import os
import resource
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.ingest.json_documents import OPTIONS, PIECE
from serving.corpora.ingest.lines import PIECE as LINE_PIECE
from serving.corpora.ingest.rows import COMPARED, COMPARED_LENGTH, MAX_DEPTH
from serving.corpora.ingest.uploading import Options, rows
from serving.errors import Invalid, Malformed, ServiceError, Stopped, TooLarge, UnsupportedMedia
from serving.operations.encoding import BUFFER
from serving.operations.threads import CancelToken
from serving.settings import Settings
from tests.conftest import soon
from tests.serving.corpora.ingest.reading import SETTINGS, Counted, Drops, read, values

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PLAIN = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=3,
)
DOCUMENTS = st.lists(st.fixed_dictionaries({"id": PLAIN, "text": PLAIN, "metadata": st.dictionaries(PLAIN, VALUES)}))
PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, "gzip": gzip.compress, "zstd": zstd.compress}


@given(documents=DOCUMENTS, ascii=st.booleans(), packed=st.sampled_from(["", "gzip", "zstd"]), named=st.booleans())
def test_ndjson(documents: list[Any], ascii: bool, packed: str, named: bool) -> None:
    body = PACK[packed]("".join(json.dumps(one, ensure_ascii=ascii) + "\n\n" for one in documents).encode())
    found = read(body, coding=packed if named else "")
    assert values(found) == documents
    assert [row.place for row in found] == [f"line {2 * i + 1}" for i in range(len(documents))]


@given(
    documents=DOCUMENTS,
    others=st.dictionaries(PLAIN.filter(lambda key: key != "documents" and key not in OPTIONS), VALUES, max_size=2),
    indent=st.sampled_from([None, 2]),
    size=st.integers(1, 30),
    bom=st.booleans(),
)
def test_json(documents: list[Any], others: dict[str, Any], indent: int | None, size: int, bom: bool) -> None:
    before, after = others | {"on_error": None}, {f"{key} too": value for key, value in others.items()}
    body = json.dumps({**before, "documents": documents, **after}, indent=indent, ensure_ascii=False).encode()
    found = read(Drops(b"\xef\xbb\xbf" * bom + body, size), "json")
    assert values(found) == documents
    assert read(Drops(json.dumps(documents, indent=indent).encode(), size), "json") == found
    assert [row.place for row in found] == [f"documents.{i}" for i in range(len(documents))]


@given(
    body=st.text('{}[]",:\\ \n0antrue"documents":', max_size=40).map(str.encode) | st.binary(max_size=40),
    size=st.integers(1, 9),
)
def test_what_is_no_json_is_told_and_what_is_is_read(body: bytes, size: int) -> None:
    try:
        found = read(Drops(body, size), "json")
    except ServiceError:
        return
    given = json.loads(body)
    documents = given if isinstance(given, list) else given["documents"]
    assert values(found) == documents or any(isinstance(one, ServiceError) for one in values(found))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty"),
        (b"{", "not JSON"),
        (b"{oops", "not JSON"),
        (b"oops", "not JSON"),
        (b'{"documents": [{"text": "a"}', "not JSON: expected ',' or ']' at byte 29"),
        (b'{"documents": [{"text": "a}', "not JSON: it ends within documents.0"),
        (b'{"documents": [{"text": "a"},]}', "not JSON: expected a value at byte 30"),
        (b'{"documents": [{"text": "a"}]} x', "not JSON: expected the end at byte 32"),
        (
            b'{"text": "a"}\n{"text": "b"}\n',
            r"expected the end \(for one document per line, use application/x-ndjson\) at byte 15",
        ),
        (b'{"documents": [], 3: 4}', "not JSON: expected the name of a field"),
        (b'{"documents": [], "a": nope}', "not JSON"),
        (b'{"documents": [], "on_error": "skip", "b": 1}', r"on_error: belongs in the query, as \?on_error="),
        (b'{"chunk_tokens": 9, "documents": []}', "chunk_tokens: belongs in the query"),
        (b'{"documents": [] "a": 1}', "not JSON"),
        (b'{"documents": [], "documents": []}', "documents: occurs twice"),
        (b'{"documents": {}}', "documents: must be a list"),
        (b'{"documents": null}', "documents: must be a list"),
        (b"{}", "documents: must be a list"),
        (b'[{"text": "a"}', "not JSON: expected ',' or ']' at byte 15"),
        (b'[{"text": "a"}] x', "not JSON: expected the end at byte 17"),
        (b'"a"', "documents: must be a list"),
    ],
)
def test_json_that_is_none(body: bytes, says: str) -> None:
    with pytest.raises(ServiceError, match=says.replace("]", r"\]")):
        read(body, "json")


@pytest.mark.parametrize("format", ["ndjson", "json"])
def test_fields_of_json_that_are_named(format: Any) -> None:
    given = [{"_id": "1", "body": "A", "id": 7, "metadata": {"a": 1}}, {"_id": "2"}, {"body": "B", "text": "C"}, 5]
    body = "\n".join(map(json.dumps, given)) if format == "ndjson" else json.dumps(given)
    first, second, third, fourth = values(read(body.encode(), format, text_column="body", id_column="_id"))
    assert first == {"id": "1", "text": "A", "metadata": {"a": 1, "id": 7}}
    assert (second["text"], fourth) == (None, 5)
    assert str(third) == (
        "_id: is required; there is no field '_id', only 'body', 'text'. Select it by ?id_column=NAME "
        "(--id-column NAME)"
    )


@pytest.mark.parametrize("text", ["text", "body"])
def test_a_list_of_documents_beside_a_text_is_metadata(text: str) -> None:
    (found,) = values(read(json.dumps({text: "A", "documents": ["b"]}).encode(), text_column=text))
    assert (found["text"], found["metadata"]) == ("A", {"documents": ["b"]})


def test_a_wrong_name_is_compared_with_few_and_short_names(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[str]()

    def counted(wanted: str, names: Iterable[str], *args: Any) -> list[str]:
        compared.extend((wanted, *names))
        return difflib_matches(wanted, names, *args)

    difflib_matches = difflib.get_close_matches
    monkeypatch.setattr(difflib, "get_close_matches", counted)
    row = {"Body": 1} | {f"{n:05}{'x' * (5 + 1000 * (n % 2))}": n for n in range(1000)}
    (found,) = read(json.dumps(row).encode(), text_column="body")
    assert "Did you mean 'Body'?" in found.hint
    assert len(found.hint) < 1000
    assert (len(compared) <= 1 + COMPARED, max(map(len, compared)) <= COMPARED_LENGTH) == (True, True)
    (found,) = read(b'{"Body": 1}', text_column="\ufb03" * 256)  # each is three letters without case
    assert max(map(len, compared)) <= COMPARED_LENGTH


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b"\n" * 100, {"format": "ndjson"}),
        (b"text,n\n" + b"a,1\n" * 100, {"format": "csv", "column_types": "auto"}),
        (b"x" * (SETTINGS.max_text_bytes + 50 * LINE_PIECE), {"format": "text"}),
        (b" " * 20 * PIECE, {"format": "json"}),
        (b"x" * 20 * BUFFER, {"format": "parquet"}),
    ],
    ids=["blank lines", "types of columns", "a line that is too long", "blanks", "a file for a child process"],
)
def test_what_has_no_row_is_left_when_nobody_waits_for_it(body: bytes, options: dict[str, Any]) -> None:
    token = CancelToken()
    file = Counted(body, token.cancel)
    with pytest.raises(Stopped):
        token.run(lambda: list(rows(file, Options(**options), SETTINGS)))
    assert file.reads < 6


NAMES = PLAIN.filter(lambda name: name not in ("id", "text", "metadata"))
FIELDS = st.dictionaries(NAMES, st.none() | st.booleans() | PLAIN | st.lists(PLAIN), max_size=3)


@given(text=PLAIN, metadata=st.none() | FIELDS, others=FIELDS)
def test_what_is_neither_text_nor_id_is_metadata(text: str, metadata: dict[str, Any] | None, others: Any) -> None:
    (found,) = values(read(json.dumps({"text": text, "metadata": metadata} | others).encode()))
    given = {name: value for name, value in others.items() if value is not None}
    if twice := (metadata or {}).keys() & given:
        assert isinstance(found, Invalid)
        assert found.message in {f"{name or repr(name)}: is also a field of metadata" for name in twice}
    else:
        assert found == {"id": None, "text": text, "metadata": (metadata or {}) | given}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (b'{"text": "a", "score": NaN}', "score: numbers must be finite"),
        (b'{"text": "a", "n": [18446744073709551616]}', "n.0: integers must be"),
        (b'{"text": "a", "n": -' + b"9" * 5000 + b"}", "n: integers must be"),
        (b'{"text": "a", "\\ud800": 1}', "not valid Unicode"),
        (b'{"text": "a", "metadata": {"n": 1}, "n": 1}', "n: is also a field of metadata"),
    ],
)
def test_a_field_that_can_be_no_metadata_is_named(row: bytes, says: str) -> None:
    (found,) = values(read(row))
    assert isinstance(found, Invalid) and says in found.message


def test_text_and_id_may_be_one_field_and_any() -> None:
    row = b'{"metadata": "a", "text": "b"}'
    (found,) = values(read(row, text_column="metadata", id_column="metadata"))
    assert found == {"id": "a", "text": "a", "metadata": {"text": "b"}}


@pytest.mark.parametrize("format", ["ndjson", "json"])
def test_a_bad_value_is_told_by_its_place(format: str) -> None:
    deep = [b"[" * depth + b"]" * depth for depth in (1000, 100_000)]
    bad = [b'{"text": nope}', b'{"text": "\xff"}', b'{"x": ' + deep[0] + b"}", deep[1]]
    body = b"\n".join([b'{"text": "a"}', *bad]) if format == "ndjson" else b'{"documents": [' + b",".join(bad) + b"]}"
    found = [str(one) for one in values(read(body, format)) if isinstance(one, ServiceError)]
    assert len(found) == 4
    for said, expected in zip(
        found,
        ["not JSON: Expecting value at character 10", "not UTF-8: byte 11 is 0xff", "deep", "lists and objects"],
        strict=True,
    ):
        assert expected in said, said


def test_rows_as_deep_as_may_be_are_read() -> None:
    inner = MAX_DEPTH - 1  # the row itself is one
    line = b'{"text": "a", "metadata": ' + b"[" * inner + b"]" * inner + b"}"
    assert values(read(line))[0]["text"] == "a"
    assert isinstance(values(read(line.replace(b"[]", b"[[]]")))[0], Invalid)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))))
def test_text(texts: list[str]) -> None:
    found = read("\r\n".join(texts).encode(), "text")
    whole = {f"line {i}": text for i, text in enumerate(texts, 1) if text and not text.isspace()}
    if texts and texts[0].startswith("\ufeff"):
        return
    assert {row.place: row.value["text"] for row in found} == whole


BODIES = {
    "ndjson": '{"text": "é"}\n{"text": "日本"}',
    "json": '[{"text": "é"}, {"text": "日本"}]',
    "text": "é\n日本",
    "csv": "text\r\né\r\n日本\r\n",
}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("named", ["", "cp1252"])
@pytest.mark.parametrize("format", BODIES)
def test_a_byte_order_mark_says_the_encoding(format: str, named: str, encoding: str) -> None:
    body = ("\ufeff" + BODIES[format]).encode(encoding)
    assert [row["text"] for row in values(read(body, format, charset=named))] == ["é", "日本"]
    assert [row["text"] for row in values(read(gzip.compress(body), format, charset=named))] == ["é", "日本"]
    utf8 = b"\xef\xbb\xbf" + BODIES[format].encode()
    assert [row["text"] for row in values(read(utf8, format, charset=named))] == ["é", "日本"]


@pytest.mark.parametrize("format", ["csv", "text"])
@pytest.mark.parametrize(
    ("charset", "text"),
    [
        *((charset, "Café – 5 €") for charset in ("windows-1252", "CP1252", "UTF-16", "utf-16le", "utf-16be", "utf-8")),
        *((charset, "Café") for charset in ("iso-8859-1", "latin1", "iso-8859-15", "macintosh")),
        *(("windows-1251", "Москва"), ("gbk", "中文"), ("us-ascii", "plain")),
        *(("shift_jis", "日本語①"), ("euc-kr", "여객선 똠"), ("gb2312", "镕")),  # as browsers read them
    ],
)
def test_text_in_a_charset_that_is_named(format: str, charset: str, text: str) -> None:
    python = {
        "utf-16": "utf-16-le",
        "macintosh": "mac-roman",
        "shift_jis": "cp932",
        "euc-kr": "cp949",
        "gb2312": "gbk",
    }.get(charset.lower(), charset)
    body = "\n".join([*["text"] * (format == "csv"), text, text]).encode(python)
    how = Options.of_part(PurePath(f"a.{'csv' if format == 'csv' else 'txt'}"), "", charset)
    assert how == Options.of_media({"csv": "text/csv", "text": "text/plain"}[format], charset)
    assert [row["text"] for row in values(read(body, format, charset=how.charset))] == [text, text]


@pytest.mark.parametrize("charset", ["klingon", "zlib", "utf-7", "unicode_escape", "idna", "a b", "\udce9"])
def test_a_charset_that_is_none_is_refused_by_its_name(charset: str) -> None:
    with pytest.raises(UnsupportedMedia, match=r"charset: .* is not supported: save the file as UTF-8"):
        Options.of_media("text/csv", charset)
    assert Options.of_media("application/json", charset).charset == "", "JSON is in UTF-8"


def test_bytes_that_the_charset_does_not_have_are_told_by_their_line() -> None:
    with pytest.raises(Malformed, match="line 3: not cp1252: a byte is 0x81"):
        read(b"a\nb\nc\x81", "text", charset="cp1252")
    with pytest.raises(Malformed, match="line 2: not utf-16-le"):
        read("\ufeffa\nb".encode("utf-16-le") + b"\x00", "text")


@pytest.mark.parametrize("format", ["ndjson", "text", "csv"])
def test_bytes_that_are_no_text_are_told_by_line_and_byte(format: str) -> None:
    good = {"ndjson": b'{"text": "a"}', "text": b"a", "csv": b"a"}[format]
    body = b"text\n" * (format == "csv") + good + b"\nab\xc3(\n" + good + b"\n"
    *_, bad, last = read(body, format)
    assert "byte 3 is 0xc3" in str(bad.value)
    assert bad.place == ("line 3" if format == "csv" else "line 2")
    assert last.value["text"] == "a"


@pytest.mark.parametrize("format", soon(["ndjson", "text", "csv", "json"], "ndjson"))
def test_long_lines_are_refused_in_little_memory(format: str, tmp_path: Path) -> None:
    """Of 100 MB in one line no more is kept than a row may be long."""
    file = tmp_path / "long"
    start = {"ndjson": b'{"text": "', "text": b"", "csv": b'text\n"', "json": b'{"documents": [{"text": "'}[format]
    with file.open("wb") as out:
        out.write(start)
        for _ in range(100):
            out.write(b"a" * 1_000_000)
        out.write(b'\n{"text": "good"}')
    tracemalloc.start()
    try:
        with file.open("rb") as body:
            found: list[Any] = []
            try:
                found = values(read(body, format))
            except ServiceError as error:
                found = [error]
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert isinstance(found[0], TooLarge)
    if format in ("ndjson", "text"):
        assert len(found) == 2, "the next line is read"


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_bombs_are_refused(coding: str) -> None:
    bomb = PACK[coding](b'{"text": "a"}\n' + b" " * 30_000_000)
    with pytest.raises(TooLarge, match="unpacks to more than 100 times as much"):
        read(bomb)
    small = PACK[coding](b'{"text": "a"}\n' * 1000)
    with pytest.raises(TooLarge, match="more than the 5000 bytes"):
        read(small, settings=Settings(max_upload_bytes=5000))
    table = PACK[coding](b"text\n" + b"".join(b"%d\n" % number for number in range(200_000)))
    with pytest.raises(TooLarge, match="more than the 1000000 bytes") as caught:
        values(read(table, "csv", settings=Settings(max_upload_bytes=1_000_000)))
    assert str(caught.value.field).startswith("line 1")
    with pytest.raises(Malformed, match=f"not {coding}"):
        read(small[:-10])
    twice = read(PACK[coding](small))
    assert all(isinstance(one, ServiceError) for one in values(twice)), "a packed file in a packed file is none"


def test_members_as_bgzip_makes_them_are_read() -> None:
    block = b'{"text": "a"}' + b" " * 5000 + b"\n"
    assert len(read(gzip.compress(block) * 1500)) == 1500


@pytest.mark.slow
def test_a_spool_is_never_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "spool"
    line = json.dumps({"text": "word " * 100}).encode() + b"\n"
    with file.open("wb") as out:
        for _ in range(40_000):
            out.write(line)
    tracemalloc.start()
    try:
        with file.open("rb") as body:
            assert sum(1 for _ in rows(body, Options(format="ndjson"), SETTINGS)) == 40_000
        assert tracemalloc.get_traced_memory()[1] < 2 * PIECE + 1_000_000
    finally:
        tracemalloc.stop()


def test_a_child_process_reads_a_page_beside_many_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert [one["text"] for one in values(read(b"<p>A page</p>", "html"))] == ["A page"]
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("name", "format"),
    [("a.jsonl", "ndjson"), ("A.CSV.GZ", "csv"), ("a.b.tsv", "csv"), ("a.json.zst", "json"), ("a.txt", "text")],
)
def test_formats_by_name(name: str, format: str) -> None:
    assert Options.of_file(PurePath(name)).format == format


def test_formats_that_are_not_read() -> None:
    with pytest.raises(UnsupportedMedia, match=r"'a\.doc'"):
        Options.of_file(PurePath("a.doc"))
    with pytest.raises(UnsupportedMedia, match="not as application/msword"):
        Options.of_media("application/msword")
    assert Options.of_media("application/vnd.x+json").format == "json"
    assert Options.of_part(PurePath("blob"), "text/csv").format == "csv"
    with pytest.raises(UnsupportedMedia):
        Options.of_part(PurePath("blob"), "application/octet-stream")
