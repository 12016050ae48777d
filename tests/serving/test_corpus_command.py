"""Tests of `isosphere ingest|search|export|verify` on a data folder without a running server."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from serving.__main__ import main
from serving.commands.options import CALLED
from serving.corpora.stores import STORES
from serving.errors import Expired, InsufficientStorage, Overloaded, ServiceError, TooSlow
from serving.inference.engines import ENGINES
from serving.inference.fake_engine import FakeEngine
from serving.jobs.spool import Spool
from tests.serving.conftest import ROOT, Command
from tests.serving.corpora.stores.contents import Row, content, filled

ROWS = [{"id": f"d{i}", "text": f"text number {i}", "metadata": {"even": i % 2 == 0}} for i in range(700)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
    return path


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_own_vectors_in_and_out_again(command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": "t", "n": i, "vector": [1 / (i + 1), -i, 0.1]} for i in range(300)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    exported = []
    for name, file in (("a", "in.jsonl"), ("b", "a.jsonl")):
        assert command("ingest", str(tmp_path / file), "--corpus", name, "--own-vectors") == 0
        assert command("export", "--corpus", name, "--out", str(tmp_path / f"{name}.jsonl")) == 0
        exported.append((tmp_path / f"{name}.jsonl").read_text().splitlines())
    assert sorted(exported[0]) == sorted(exported[1]), "vectors of length 1 are stored bit by bit"
    place = tmp_path / "var"
    assert main(["copy", f"{place}#a", f"{place}#c"]) == 0
    capsys.readouterr()
    assert command("export", "--corpus", "c", "--filter", '{"n": 7}') == 0
    (seventh,) = lines(capsys)
    assert seventh == next(row for row in map(json.loads, exported[0]) if row["id"] == "7")
    assert command("search", "t", "--corpus", "c") == 2
    assert "search by vector" in capsys.readouterr().err
    assert command("ingest", str(tmp_path / "in.jsonl"), "--corpus", "d") == 1
    assert "line 1.vector: an encoder embeds corpus 'd'" in capsys.readouterr().err


def test_in_and_out_again(command: Command, file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command("ingest", str(file), "--corpus", "c", "--stemming", "porter") == 0
    assert "700 documents" in capsys.readouterr().err
    assert command("search", "numbered 699", "--corpus", "c", "--mode", "lexical", "-k", "1", "--json") == 0
    assert lines(capsys)[0]["id"] == "d699"
    assert command("search", "numbered", "--corpus", "c", "--mode", "lexical") == 0
    assert capsys.readouterr().out.count("text number") == 10
    assert command("ingest", str(file), "--corpus", "c", "--stemming", "none") == 2
    assert "has documents, indexed with the stemming 'porter'" in capsys.readouterr().err
    assert command("search", "text number 41", "--corpus", "c", "-k", "1", "--json") == 0
    assert lines(capsys)[0]["id"] == "d41"
    assert command("search", "41", "--corpus", "c", "--mode", "lexical", "--filter", '{"even": true}') == 0
    assert capsys.readouterr().out == ""
    assert command("search", "41", "--corpus", "c", "--filter", '{"evne": true}') == 0
    assert "--filter: no document has the field 'evne'. Did you mean 'even'?" in capsys.readouterr().err
    assert command("search", "41", "--corpus", "c", "--mode", "lexical") == 0
    assert "d41  text number 41" in capsys.readouterr().out
    assert command("search", "41", "--corpus", "c", "--mode", "hybrid", "--json") == 0
    both, *others = lines(capsys)
    assert both["id"] == "d41" and both["dense"] <= 1 and both["lexical"] > 0
    assert all(both[part] == round(both[part], 6) for part in ("score", "dense", "lexical")), "as a server shows them"
    assert others and all(hit["dense"] <= 1 and hit["lexical"] is None for hit in others)
    out = tmp_path / "out.ndjson"
    assert command("export", "--corpus", "c", "--out", str(out)) == 0
    exported = [json.loads(line) for line in out.read_text().splitlines()]  # Blocks are committed as they come.
    assert sorted(exported, key=lambda row: int(row["id"][1:])) == ROWS
    assert command("export", "--corpus", "c", "--filter", '{"$id": {"$in": ["d7", "d8"]}, "even": true}') == 0
    assert [row["id"] for row in lines(capsys)] == ["d8"]
    assert command("verify") == 0
    assert capsys.readouterr().out == "c: whole, 700 documents, 700 vectors\n"


def test_the_file_that_is_wrong_is_named_and_nothing_is_kept(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.ndjson"
    bad.write_text('{"text": "good"}\n{"text": 7}\n')
    assert command("ingest", str(bad), "--corpus", "c") == 1
    said = capsys.readouterr().err
    assert f"{bad}: line 2.text: must be a string" in said
    assert said.endswith("isosphere ingest: failed after 0 documents\n")
    assert command("export", "--corpus", "c") == 2, "a corpus that nothing came into is not left behind"
    assert "there is no corpus 'c'" in capsys.readouterr().err
    assert command("ingest", str(bad), "--corpus", "c", "--on-error", "skip") == 0
    assert "line 2" in capsys.readouterr().err
    assert command("export", "--corpus", "c") == 0
    assert [line["text"] for line in lines(capsys)] == ["good"]
    assert command("ingest", str(bad), "--corpus", "c") == 1
    capsys.readouterr()
    assert command("export", "--corpus", "c") == 0
    assert [line["text"] for line in lines(capsys)] == ["good"]


def test_rows_that_are_left_out_are_counted_if_they_are_too_many_to_name(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.ndjson"
    file.write_text('{"text": "good"}\n' + '{"text": 7}\n' * 150)
    assert command("ingest", str(file), "--corpus", "c", "--on-error", "skip") == 0
    *told, last, stored = capsys.readouterr().err.splitlines()
    assert (len(told), last, stored) == (100, f"{file}: and 50 more errors", "c: 1 documents")


@pytest.mark.parametrize(
    ("verb", "arguments", "says"),
    [
        ("ingest", ["nope.csv", "--corpus", "c"], "nope.csv"),
        ("ingest", ["{file}", "--corpus", "c", "--watch"], "rows.jsonl.gz is not a folder"),
        ("ingest", ["-", "--corpus", "c", "--watch"], "--watch: - is not a folder"),
        ("ingest", ["{file}", "--corpus", "c", "--metadata", "[]"], "metadata: must be a JSON object"),
        ("ingest", ["{file}", "--corpus", "c", "--own-vectors", "--embedded"], "not allowed with"),
        ("ingest", ["{file}", "--corpus", "c", "--url", "here"], "--url: 'here' must begin with http"),
        ("ingest", ["{file}", "--corpus", "../c"], "corpus name"),
        ("ingest", ["{file}", "--corpus", "c", "--chunk-tokens", "3"], "chunk_tokens"),
        ("ingest", ["{file}", "--corpus", "c", "--chunk-tokens", "5000"], "the encoder of the corpus reads"),
        ("search", ["a", "--corpus", "c"], "has no corpora"),
        ("search", ["a", "--corpus", "c", "--filter", "{"], "filter"),
        ("search", ["a", "--corpus", "c", "-k", "0"], "-k: must be 1 to 1000"),
        ("search", ["a", "--corpus", "c", "-k", "1001"], "-k: must be 1 to 1000"),
        ("export", ["--corpus", "c"], "has no corpora"),
        ("verify", ["--corpus", "c"], "has no corpora"),
        ("verify", ["--port", "x"], "--port"),
    ],
)
def test_a_wrong_argument_is_one_line(
    command: Command, file: Path, capsys: pytest.CaptureFixture[str], *, verb: str, arguments: list[str], says: str
) -> None:
    assert (
        command(verb, *(argument.format(file=file) if "{file}" in argument else argument for argument in arguments))
        == 2
    )
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if line.startswith(f"isosphere {CALLED.get(verb, verb)}: ")]) == 1
    assert says in said[-1]


def test_a_server_that_can_not_be_reached_is_a_failure_and_no_mistake(
    command: Command, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("ingest", str(file), "--corpus", "c", "--url", "http://127.0.0.1:9") == 1
    assert "isosphere ingest: http://127.0.0.1:9: " in capsys.readouterr().err


@pytest.mark.parametrize("error", [Overloaded, Expired, TooSlow])
def test_a_temporary_refusal_is_a_failure_and_no_mistake(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch, error: type[ServiceError]
) -> None:
    async def refuse(*_: object) -> None:
        raise error("try again later")

    monkeypatch.setattr(Spool, "write", refuse)
    assert command("ingest", str(file), "--corpus", "c") == 1


@pytest.mark.parametrize("arguments", [["search", "a", "--corpus", "c"], ["export", "--corpus", "c"], ["verify"]])
def test_a_folder_without_corpora_is_said_so_and_not_made(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert command(*arguments) == 2
    assert f"--data: the folder {tmp_path / 'var'} has no corpora" in capsys.readouterr().err
    assert not (tmp_path / "var").exists()


def test_a_file_that_is_not_there_makes_no_corpus(command: Command, file: Path, tmp_path: Path) -> None:
    assert command("ingest", str(file), "--corpus", "c") == 0
    assert command("ingest", str(tmp_path / "nope.csv"), "--corpus", "d") == 2
    assert command("export", "--corpus", "d") == 2


def test_an_upload_that_can_not_be_kept_makes_no_corpus(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def full(*_: object) -> None:
        raise InsufficientStorage("spool: no space left on device")

    assert command("ingest", str(file), "--corpus", "c") == 0
    monkeypatch.setattr(Spool, "write", full)
    assert command("ingest", str(file), "--corpus", "d") == 1
    assert "no space left" in capsys.readouterr().err
    assert command("export", "--corpus", "d") == 2


def test_an_export_that_fails_leaves_what_was_there(
    command: Command, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("ingest", str(file), "--corpus", "c") == 0
    backup = tmp_path / "backup.ndjson"
    assert command("export", "--corpus", "c", "--out", str(backup)) == 0
    held = backup.read_bytes()
    assert held and command("export", "--corpus", "typo", "--out", str(backup)) == 2
    assert backup.read_bytes() == held
    nowhere = tmp_path / "nope" / "o"
    assert command("export", "--corpus", "c", "--out", str(nowhere)) == 2
    assert capsys.readouterr().err.endswith(f"isosphere export-corpus: {nowhere}: No such file or directory\n")
    assert command("export", "--corpus", "c", "--out", "/dev/null") == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.slow
def test_who_reads_the_beginning_of_an_export_hears_no_complaint(command: Command, file: Path, tmp_path: Path) -> None:
    assert command("ingest", str(file), "--corpus", "c") == 0
    export = f"{sys.executable} -m serving export --corpus c --data {tmp_path / 'var'} --engine fake"
    ended = subprocess.run(["bash", "-c", f"{export} | true"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stderr == ""


def test_what_the_encoder_does_not_read_is_told(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "long.txt").write_text("word " * 5000 + "\nshort\n")
    assert command("ingest", str(tmp_path / "long.txt"), "--corpus", "c") == 0
    assert "c: 2 documents, 1 longer than the encoder reads" in capsys.readouterr().err


def test_a_table_as_a_spreadsheet_exports_it(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_bytes("sep=;\r\nId;Text;Price;\r\n7;Café;5;\r\n;;;\r\n".encode("cp1252"))
    as_it_is = ("--charset", "windows-1252", "--column-types", "auto")
    assert command("ingest", str(tmp_path / "a.csv"), "--corpus", "c", *as_it_is) == 0
    assert command("export", "--corpus", "c") == 0
    assert lines(capsys) == [{"id": "7", "text": "Café", "metadata": {"Price": 5}}]
    assert command("ingest", str(tmp_path / "a.csv"), "--corpus", "c", "--charset", "klingon") == 2
    assert "charset: 'klingon' is not supported" in capsys.readouterr().err


def test_a_folder_in_use_is_said_so(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = STORES["sqlite"](tmp_path / "var" / "corpora")
    assert command("verify") == 2
    assert "in use by another server or command" in capsys.readouterr().err
    held.close()
    assert command("verify") == 0


def test_what_an_earlier_version_stored_under_an_id_that_is_none_now_comes_out(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Row] = [(id, f"text of {id}", {}) for id in (".", "..")]
    filled(STORES["sqlite"](tmp_path / "var" / "corpora"), "c", content(rows)).close()
    assert command("export", "--corpus", "c") == 0
    assert [line["id"] for line in lines(capsys)] == [".", ".."]
    bad = tmp_path / "bad.ndjson"
    bad.write_text('{"id": "..", "text": "text of .."}\n')
    assert command("ingest", str(bad), "--corpus", "d") == 1
    assert "line 1.id: must not be '..'" in capsys.readouterr().err


def test_verify_finds_a_vector_that_changed(
    command: Command, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("ingest", str(file), "--corpus", "c") == 0
    path = tmp_path / "var" / "corpora" / "c.sqlite"
    import sqlite3

    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE vectors SET vector = zeroblob(length(vector)) WHERE key = 7")
    connection.close()
    capsys.readouterr()
    assert command("verify") == 1
    said = "c: the vector of passage 7 is damaged; restore a snapshot over it or delete it\n"
    assert capsys.readouterr().out == said


def test_verify_names_a_file_that_was_emptied(
    command: Command, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("ingest", str(file), "--corpus", "c") == 0
    path = tmp_path / "var" / "corpora" / "c.sqlite"
    path.write_bytes(b"")
    capsys.readouterr()
    assert command("verify") == 1
    assert capsys.readouterr().out.startswith("c: c.sqlite: contains no corpus: it is empty")
    assert path.read_bytes() == b""


def test_verify_reads_the_indexes_too(
    command: Command, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("ingest", str(file), "--corpus", "c") == 0
    manifest = tmp_path / "var" / "indexes" / "c" / "00000001-a" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    capsys.readouterr()
    assert command("verify") == 1
    assert str(manifest) in capsys.readouterr().out


def test_vectors_of_embed_are_stored_as_they_are(
    command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    texts = [f"text number {i}" for i in range(300)]
    (vectors := tmp_path / "parts").mkdir()
    fingerprint = ENGINES["fake"](tmp_path).manifest.fingerprint
    engine = FakeEngine()
    rows = engine.embed(engine.tokenize(texts, "right")).vectors.tolist()
    table = pyarrow.table({"id": [str(i) for i in range(300)], "text": texts, "vector": rows})
    parquet.write_table(table.replace_schema_metadata({"fingerprint": fingerprint}), vectors / "part-0.parquet")
    assert command("ingest", str(vectors), "--corpus", "c", "--embedded") == 0
    capsys.readouterr()
    assert command("search", texts[123], "--corpus", "c", "-k", "1", "--json") == 0
    (hit,) = lines(capsys)
    assert hit["id"] == "123"
    parquet.write_table(table, tmp_path / "foreign.parquet")
    assert command("ingest", str(tmp_path / "foreign.parquet"), "--corpus", "d", "--embedded") == 2
    assert "does not name its encoder" in capsys.readouterr().err
