"""Files of a corpus: tables, folders, patterns, and what is no text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from training import cli
from training.commands import pretrain, train
from training.corpus.corpus import open_corpus
from training.corpus.files import CorpusError, found, sentences
from training.pretraining.config import PretrainConfig

ROWS = ["A man plays the guitar.", 'He said "no", twice.', "", "Two lines of one text."]


def read(*files: Path | str, column: str | None = None) -> list[str]:
    return [line.rstrip("\n") for line in sentences(found([str(file) for file in files]), column)]


def table(delimiter: str = ",", name: str = "text") -> str:
    quoted = ['"' + row.replace("lines of", "lines\nof").replace('"', '""') + '"' for row in ROWS]
    return f"id{delimiter}{name}\n" + "".join(f"{n}{delimiter}{row}\n" for n, row in enumerate(quoted))


def test_a_table_gives_its_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeff" + table(name=" Text"))
    (tmp_path / "b.TSV.gz").write_bytes(gzip.compress(table("\t", "sentence").encode()))
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"id": n, "text": row}) + "\n" for n, row in enumerate(ROWS)))
    (tmp_path / "d.ndjson").write_text('\n{"sentence": null, "body": "the body"}\n')
    for name in ("a.csv", "b.TSV.gz", "c.jsonl"):
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
        ("a.jsonl", '{"text": 1}\n', r"a\.jsonl:1: text is no string"),
        ("a.jsonl", '["a"]\n', r"a\.jsonl:1: expected a JSON object"),
        ("a.jsonl", "a\n", r"a\.jsonl:1: not JSON"),
        ("a.parquet", "PAR1", r"a\.parquet: \.parquet is not read: write it as JSON lines"),
        ("a.json", "[]", r"a\.json: \.json is not read"),
        ("a.txt", '{"text": "a sentence"}\n', r"a\.txt: looks like JSON: name JSON lines \.jsonl"),
        ("a.txt", "%PDF-1.7\n", r"a\.txt: looks like a PDF"),
        ("a.docx", "PK\x03\x04\x00", r"a\.docx: looks like a ZIP archive, as Office documents are"),
        ("a.bin", "abc\x00def\n", r"a\.bin: looks like binary"),
        ("a.txt", "\ufeff\n<!DOCTYPE html>\n", r"a\.txt: looks like HTML, XML or other markup"),
        ("a.html", "<html><p>Text.</p></html>", r"a\.html: looks like HTML, XML or other markup"),
        ("a.txt", '<doc id="12" title="x">\nText.\n', r"a\.txt: looks like HTML, XML or other markup"),
    ],
)
def test_what_has_no_sentences_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    with pytest.raises(CorpusError, match=message):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "line", ["<unk> was the first word.", "<3 you", "a < b and c > d", "{curly} text", "[1] A note."]
)
def test_a_sentence_that_begins_like_markup_is_a_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.txt").write_text(f"{line}\nanother\n")
    assert read(tmp_path / "a.txt") == [line, "another"]


def test_folders_and_patterns_are_their_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("from b\n")
    (tmp_path / "sub" / "a.csv").write_text("text\nfrom a\n")
    (tmp_path / ".hidden.txt").write_text("hidden\n")
    assert read(tmp_path) == ["from b", "from a"] and not caplog.messages
    (tmp_path / "README.md").write_text("# not read\n")
    assert read(tmp_path) == ["from b", "from a"]
    assert caplog.messages == [f"{tmp_path}: 1 files are left out, such as README.md"]
    assert read(f"{tmp_path}/**/*.csv") == ["from a"]
    (tmp_path / "[1].txt").write_text("a name, no pattern\n")
    assert read(tmp_path / "[1].txt") == ["a name, no pattern"]
    with pytest.raises(CorpusError, match=r"\*\.xyz: no file matches"):
        found([f"{tmp_path}/*.xyz"])
    with pytest.raises(CorpusError, match=r"^hf://org/name: data sets of the hub are not read"):
        found(["hf://org/name"])


def test_a_column_needs_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(CorpusError, match=r"a\.txt: has no column 'body'"):
        open_corpus([str(tmp_path / "a.txt")], column="body")
    with pytest.raises(CorpusError, match="--text-column body: of which corpus"):
        open_corpus([], column="body")


def test_a_run_keeps_the_column_and_earlier_runs_have_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body\n" + "".join(f"sentence number {n}\n" for n in range(50)))
    for module, command in ((train, ["train", "simcse"]), (pretrain, ["pretrain"])):
        options = cli.parsed([*command, "--corpus", str(tmp_path / "a.csv"), "--text-column", "body"])
        config = module.resolve(options)
        assert config.text_column == "body" and type(config).from_json(config.to_json()) == config
    before = json.loads(PretrainConfig().to_json())
    del before["text_column"]
    assert PretrainConfig.from_json(json.dumps(before)) == PretrainConfig()
    corpus = open_corpus([str(tmp_path / "a.csv")], column="body")
    assert corpus.census.sentences + len(corpus.census.held_out) == 50
