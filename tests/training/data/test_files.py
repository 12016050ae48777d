"""Tests of the files of a corpus: tables, folders, patterns, and files that are not text."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sys
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.cli import pretrain, train
from training.cli.options import parse
from training.data.corpus import open_corpus
from training.data.files import CorpusError, detect_format, resolve_files, sentences, text_sha256
from training.pretraining.config import PretrainConfig

ROWS = ["A man plays the guitar.", 'He said "no", twice.', "", "Two lines of one text."]

BROKEN_TEXT = pyarrow.Array.from_buffers(
    pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0"), pyarrow.py_buffer(b"\xff")]
)


def read(*files: Path | str, column: str | None = None) -> list[str]:
    return [line.rstrip("\n") for line in sentences(resolve_files([str(file) for file in files]), column)]


def table(delimiter: str = ",", name: str = "text") -> str:
    quoted = ['"' + row.replace("lines of", "lines\nof").replace('"', '""') + '"' for row in ROWS]
    return f"id{delimiter}{name}\n" + "".join(f"{n}{delimiter}{row}\n" for n, row in enumerate(quoted))


def test_a_table_gives_its_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeff" + table(name=" Text"))
    (tmp_path / "b.TSV.gz").write_bytes(gzip.compress(table("\t", "sentence").encode()))
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"id": n, "text": row}) + "\n" for n, row in enumerate(ROWS)))
    (tmp_path / "e.csv").write_text(table(";"))
    (tmp_path / "d.ndjson").write_text('\n{"sentence": null, "body": "the body"}\n')
    for name in ("a.csv", "b.TSV.gz", "c.jsonl", "e.csv"):
        assert read(tmp_path / name) == ROWS
    assert read(tmp_path / "d.ndjson") == [""]
    assert read(tmp_path / "d.ndjson", column="body") == ["the body"]
    assert read(tmp_path / "a.csv", column="id") == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "sent0,sent1\na,b\n", r"a\.csv: no column text or sentence; there are sent0, sent1: name one by --t"),
        ("a.csv", "", r"a\.csv: no column text or sentence; there are none"),
        ("a.csv", "text,n\na,1,2\n", r"a\.csv:2: 3 columns, but the header has 2"),
        ("a.csv", 'text\n"a\n', r"a\.csv:2: unexpected end of data"),
        ("a.jsonl", '{"text": "a"}\n{"body": "a"}\n', r"a\.jsonl:2: no column text or sentence; there are body"),
        ("a.jsonl", '{"text": 1}\n', r"a\.jsonl:1: 1 is not a string"),
        ("a.jsonl", '["a"]\n', r"a\.jsonl:1: expected a JSON object"),
        ("a.jsonl", "a\n", r"a\.jsonl:1: not JSON"),
        ("a.parquet", "PAR1", r"a\.parquet: after row 0: Parquet file size is 4 bytes"),
        ("a.parquet", "text\na\n" * 9, r"a\.parquet: after row 0: Parquet magic bytes not found"),
        ("a.parquet.gz", "", r"a\.parquet\.gz: is compressed twice, because Parquet compresses its columns itself"),
        ("a.json", "[]", r"a\.json: \.json is not supported: write it as Parquet, JSON lines"),
        ("a.txt", "PAR1\x15\x04", r"a\.txt: looks like Parquet: name it \.parquet"),
        ("a.txt", '{"text": "a sentence"}\n', r"a\.txt: looks like JSON: name JSON lines \.jsonl"),
        ("a.txt", "%PDF-1.7\n", r"a\.txt: looks like a PDF"),
        ("a.docx", "PK\x03\x04\x00", r"a\.docx: looks like a ZIP archive, as Office documents are"),
        ("a.bin", "abc\x00def\n", r"a\.bin: looks like binary"),
        ("a.txt", "\ufeff\n<!DOCTYPE html>\n", r"a\.txt: looks like HTML, XML or other markup"),
        ("a.html", "<html><p>Text.</p></html>", r"a\.html: looks like HTML, XML or other markup"),
        ("a.txt", '<doc id="12" title="x">\nText.\n', r"a\.txt: looks like HTML, XML or other markup"),
        *(
            ("notes", content, "notes: looks like HTML, XML or other markup")
            for content in (
                "<p>The first paragraph.\n<p>The second.\n",
                "<p> the first\nparagraph\n<p> the second\n<p> the third\n",
                "<html>\n<body>\n<ul>\n<li>One",
                "<BR>Text<BR>Text",
                "<p>Text with <b>bold</b> words.\n",
                "<s> the cat sat </s>\n<s> it slept </s>\n",
                "<!-- saved from a page -->\nText.\n",
                "<!--\nA licence.\n",
            )
        ),
        *(
            (name, content, rf"{name}: looks like a table with the columns {columns}: name it {ending}, or delete")
            for name, content, columns, ending in (
                ("a.txt", "id,text\n1,A man.\n", "id, text", r"\.csv"),
                ("a.txt", 'id,Text\r\n1,"No, he\nsaid."\r\n2,b\r\n3,c\r\n4,"d\r\n', "id, Text", r"\.csv"),
                ("a", "sentence;year\na, b;1999\n", "sentence, year", r"\.csv"),
                ("a.text", "\ttext\tlabel\n0\ta\tb\n", ", text, label", r"\.tsv"),
                ("a.txt", "text,n\n" + "a sentence,1\n" * 5000 + "a broken, row,1\n", "text, n", r"\.csv"),
            )
        ),
    ],
)
def test_what_has_no_sentences_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    with pytest.raises(CorpusError, match=message):
        read(tmp_path / name)


def write_parquet(file: Path, **columns: object) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), file)


def test_parquet_gives_its_column(tmp_path: Path) -> None:
    file = tmp_path / "a.PARQUET"
    rows = ROWS * 1000
    write_parquet(file, id=list(range(len(rows))), Text=[row.replace("lines of", "lines\nof") for row in rows])
    assert read(file) == read(tmp_path) == read(f"{tmp_path}/*") == rows
    assert text_sha256([str(file)]) == hashlib.sha256(file.read_bytes()).hexdigest()
    for values in (
        pyarrow.array([*ROWS, None]).dictionary_encode(),
        pyarrow.array([*ROWS, None], pyarrow.large_string()),
    ):
        write_parquet(file, sentence=values, body=["x"] * 5)
        assert read(file) == [*ROWS, ""] and read(file, column="BODY") == ["x"] * 5


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"sent0": ["a"], "n": [1]}, r"a\.parquet: no column text or sentence; there are sent0, n: name one by --t"),
        ({"text": [1]}, r"a\.parquet: row 1: 1 is not a string"),
        ({"text": [["a"], ["b"]]}, r"a\.parquet: row 1: \['a'\] is not a string"),
        ({"text": [b"a"]}, r"a\.parquet: row 1: b'a' is not a string"),
        ({"text": BROKEN_TEXT}, r"a\.parquet: after row 0: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_what_parquet_lacks_is_named(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    write_parquet(tmp_path / "a.parquet", **columns)
    with pytest.raises(CorpusError, match=message):
        read(tmp_path / "a.parquet")


def test_a_row_group_of_parquet_is_read_in_parts(tmp_path: Path) -> None:
    texts = [random.Random(n).randbytes(200).hex() for n in range(40_000)]
    write_parquet(tmp_path / "a.parquet", text=texts, other=texts)
    reading, decoded = sentences([tmp_path / "a.parquet"]), pyarrow.total_allocated_bytes()
    tracemalloc.start()  # The sentences are those of the file.
    try:
        assert next(reading) == texts[0]
        held = tracemalloc.get_traced_memory()[1] + pyarrow.total_allocated_bytes() - decoded
    finally:
        tracemalloc.stop()
    assert held < len("".join(texts)) / 2
    assert list(reading) == texts[1:]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "a.parquet", text=["a"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        CorpusError, match=r"a\.parquet: Parquet needs the extra `data`: pip install 'isosphere\[data\]'"
    ):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "line",
    [
        "<unk> was the first word.",
        "<unk>, <s> and </s> are special tokens.",
        "<3 you",
        "a < b and c > d",
        "<p> opens a paragraph and </p> closes it.",
        "<p> and <br> are tags.",
        "<p>s need no </p>s.",
        "<!-- begins a comment, --> ends it.",
        "{curly} text",
        "[1] A note.",
        "text, sentence",
    ],
)
def test_a_sentence_that_begins_like_markup_is_a_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.txt").write_text(f"{line}\nanother\n")
    assert read(tmp_path / "a.txt") == [line, "another"]


WORDS = st.sampled_from(["text", "Text", "sentence", "<p>", "<!--", "-->", "</p>", "a", "man", "1", '"no"'])
SENTENCES = st.builds(
    lambda words, end: "".join(words).strip(" ,;") + end,
    st.lists(st.tuples(WORDS, st.sampled_from([" ", ", ", "; "])).map("".join), min_size=2, max_size=6),
    st.sampled_from([".", "?", " …"]),
)


@given(SENTENCES, st.lists(SENTENCES, max_size=8))
def test_prose_is_never_refused(first: str, others: list[str]) -> None:
    """Accept prose whose first sentence mentions a tag. If other lines do so too, it is markup without closing tags."""
    prose = "\n".join([first, *(f"A {other}" for other in others)])
    assert detect_format(prose.encode()) is None


@given(st.binary(max_size=60) | st.text().map(str.encode))
def test_any_beginning_can_be_looked_at(head: bytes) -> None:
    detect_format(b"text,b\n" + head)


def test_a_document_of_any_length_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text(f"id,text\n1,{'a ' * 100_000}end\n")
    assert [len(text) for text in read(tmp_path / "long.csv")] == [200_003]


def test_folders_and_patterns_are_their_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("from b\n")
    (tmp_path / "sub" / "a.csv").write_text("text\nfrom a\n")
    (tmp_path / ".hidden.txt").write_text("hidden\n")
    (tmp_path / ".checkpoints" / "sub").mkdir(parents=True)
    (tmp_path / ".checkpoints" / "sub" / "a.csv").write_text("text\nfrom an old a\n")
    assert read(tmp_path) == ["from b", "from a"] and not caplog.messages
    (tmp_path / "README.md").write_text("# not read\n")
    assert read(tmp_path) == ["from b", "from a"]
    assert caplog.messages == [f"{tmp_path}: 1 files are left out, such as README.md"]
    assert read(f"{tmp_path}/**/*.csv") == ["from a"]
    (tmp_path / "[1].txt").write_text("a name, no pattern\n")
    assert read(tmp_path / "[1].txt") == ["a name, no pattern"]
    with pytest.raises(CorpusError, match=r"\*\.xyz: no file matches"):
        resolve_files([f"{tmp_path}/*.xyz"])


def test_a_column_needs_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(CorpusError, match=r"a\.txt: has no column 'body'"):
        open_corpus([str(tmp_path / "a.txt")], column="body")
    with pytest.raises(CorpusError, match="--text-column body: needs a corpus"):
        open_corpus([], column="body")


def test_a_run_keeps_the_column_and_earlier_runs_have_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body\n" + "".join(f"sentence number {n}\n" for n in range(50)))
    for module, command in ((train, ["train", "simcse"]), (pretrain, ["pretrain"])):
        options = parse([*command, "--corpus", str(tmp_path / "a.csv"), "--text-column", "body"])
        config = module.resolve(options)
        assert config.text_column == "body" and type(config).from_json(config.to_json()) == config
    before = json.loads(PretrainConfig().to_json())
    del before["text_column"]
    assert PretrainConfig.from_json(json.dumps(before)) == PretrainConfig()
    corpus = open_corpus([str(tmp_path / "a.csv")], column="body")
    assert corpus.census.sentences + len(corpus.census.held_out) == 50
