"""Tests of `isosphere embed`: input and output formats, bad rows, options and errors."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isosphere import Encoder
from isosphere.command import main
from isosphere.embed import embedding
from isosphere.embed.embedding import Done, Options, embed
from models.bundle import quantization
from models.bundle.tokenizer import TokenizerFailure
from models.errors import Refused
from models.runtimes.onnxruntime import OnnxRuntime
from tests.isosphere.embedding import ENGINE, TEXTS, run, text_file

pytestmark = pytest.mark.usefixtures("small_parts")


def table(out: Path) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = pq.read_table(out).to_pydict()
    return columns


def write_csv(file: Path, delimiter: str) -> None:
    quoted = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
    rows = [
        delimiter.join(("id", "text", "year")),
        *(f"n{i}{delimiter}{q}{delimiter}{i}" for i, q in enumerate(quoted)),
    ]
    file.write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.csv", "a.tsv", "a.parquet"])
def test_each_format_gives_the_vectors_of_its_texts(encoder: Encoder, tmp_path: Path, name: str) -> None:
    file, out = tmp_path / name, tmp_path / "out.parquet"
    columns, text_column, id_column = ["text"], None, None
    if ".txt" in name:
        text_column, id_column = "text", "text" if name == "a.txt.gz" else None
        text = "".join(f"{text}\r\n" for text in TEXTS).encode()
        file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        ids = TEXTS if id_column else [f"{file}:{i}" for i in range(1, 7)]
    else:
        columns, ids = ["text", "year"], [f"n{i}" for i in range(6)]
        if name == "a.jsonl":
            rows = ({"id": f"n{i}", "text": text, "year": i} for i, text in enumerate(TEXTS))
            file.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
        elif name == "a.parquet":
            pq.write_table(pa.table({"id": ids, "text": TEXTS, "year": list(range(6))}), file)
        else:
            write_csv(file, "\t" if name == "a.tsv" else ",")
    assert run(encoder, file, out=out, columns=columns, text_column=text_column, id_column=id_column) == Done(6, 0, "")
    found = table(out)
    assert found["id"] == ids
    # `encode` uses the same batches as the file.
    expected = np.concatenate([encoder.encode(TEXTS[:4]), encoder.encode(TEXTS[4:])])
    assert np.array_equal(np.array(found["vector"], np.float32), expected)
    assert found["text"] == TEXTS
    if "year" in columns:
        assert [int(year) for year in found["year"]] == list(range(6))


def test_a_folder_is_read_in_order_without_the_output(encoder: Encoder, tmp_path: Path) -> None:
    text_file(tmp_path / "b.txt", TEXTS[3:])
    text_file(tmp_path / "a.txt", TEXTS[:3])
    out = tmp_path / "out.parquet"
    for _ in range(2):
        assert run(encoder, tmp_path, out=out).rows == 6
    np.testing.assert_allclose(table(out)["vector"], encoder.encode(TEXTS), atol=2e-6)
    assert table(out)["id"][3] == f"{tmp_path / 'b.txt'}:1"


def test_a_pipe_is_refused_because_its_second_reading_would_find_no_rows(encoder: Encoder, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write("a cat\n")
    with os.fdopen(reading), pytest.raises(Refused, match="must be a file"):
        run(encoder, Path(f"/dev/fd/{reading}"), out=tmp_path / "out.npy")
    assert not [*tmp_path.iterdir()]


def test_npy_is_an_array_of_all_lines_blank_ones_too(encoder: Encoder, tmp_path: Path) -> None:
    texts = [*TEXTS, "", "rain"]
    run(encoder, text_file(tmp_path / "a.txt", texts), out=tmp_path / "out.npy")
    vectors = np.load(tmp_path / "out.npy")
    assert vectors.shape == (8, 32) and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, encoder.encode(texts), atol=2e-6)


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
def test_no_text_gives_no_vector(encoder: Encoder, tmp_path: Path, name: str) -> None:
    file, out = tmp_path / "a.csv", tmp_path / name
    file.write_text("text,year\n")
    assert run(encoder, file, out=out, columns=["year"] if name == "out.parquet" else []).rows == 0
    if name == "out.npy":
        assert np.load(out).shape == (0, 32)
    else:
        assert table(out) == {"id": [], "vector": [], "year": []}


def test_parquet_names_its_encoder(encoder: Encoder, lines: Path, tmp_path: Path) -> None:
    run(encoder, lines, out=tmp_path / "out.parquet", dimensions=8)
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert schema.field("vector").type == pa.list_(pa.float32(), 8)
    metadata = {key.decode(): value.decode() for key, value in schema.metadata.items()}
    assert (metadata["encoder"], metadata["fingerprint"], metadata["dim"]) == ("tiny", encoder.fingerprint, "8")


def test_dimensions_and_codes_are_those_of_the_server(encoder: Encoder, lines: Path, tmp_path: Path) -> None:
    texts = TEXTS * 3
    unit = encoder.encode(texts)
    run(encoder, lines, out=tmp_path / "cut.npy", dimensions=8)
    np.testing.assert_allclose(np.load(tmp_path / "cut.npy"), encoder.encode(texts, dimensions=8), atol=2e-6)
    run(encoder, lines, out=tmp_path / "bits.npy", encoding="ubinary")
    assert np.array_equal(np.load(tmp_path / "bits.npy"), quantization.ubinary(unit))
    run(encoder, lines, out=tmp_path / "bytes.npy", encoding="int8", dimensions=8)
    assert encoder.int8_limit
    expected = quantization.int8(unit[:, :8], encoder.int8_limit)
    # Vectors of another batch differ in the last bits.
    assert np.abs(np.load(tmp_path / "bytes.npy").astype(int) - expected).max() <= 1


def test_columns_have_one_type_that_holds_all_values(encoder: Encoder, tmp_path: Path) -> None:
    years = [None] * 4 + [1, 2, 3, 4] + [2.5]
    rows = [{"text": "a cat", "year": year, "tags": ["x"]} for year in years]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(encoder, tmp_path / "a.jsonl", out=tmp_path / "out.parquet", columns=["year", "tags"])
    assert table(tmp_path / "out.parquet")["year"] == years
    assert table(tmp_path / "out.parquet")["tags"] == [["x"]] * 9


@pytest.mark.parametrize(
    ("years", "says"),
    [
        ([1, 2, 3, 4, "MMI"], r"'year'.*a\.jsonl:5"),
        ([2**63], r"'year'.*a\.jsonl:1"),
        ([{}], "can't store 'year'"),
    ],
)
def test_values_that_no_column_can_have_are_refused_before_the_work(
    encoder: Encoder, tmp_path: Path, years: list[Any], says: str
) -> None:
    rows = [{"text": "a cat", "year": year} for year in years]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(Refused, match=says):
        run(encoder, tmp_path / "a.jsonl", out=tmp_path / "out.parquet", columns=["year"])
    assert [*tmp_path.iterdir()] == [tmp_path / "a.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"a cat\nb\xff\nthe dog\n", ("a.txt:2", 1)),
        ("a.jsonl", b'{"text": "a cat"}\n{"text": 1}\n{"text": "b\n{"a": 1}\n{"text": "the dog"}\n', ("a.jsonl:2", 3)),
        ("a.csv", b'text,n\na cat,1\nb\n"c"d,1\n\xff,1\nthe dog,2\n', ("a.csv:3", 3)),
    ],
)
def test_a_bad_row_is_named_or_skipped(
    encoder: Encoder, tmp_path: Path, name: str, content: bytes, expected: tuple[str, int]
) -> None:
    file, out = tmp_path / name, tmp_path / "out.npy"
    file.write_bytes(content)
    place, skipped = expected
    with pytest.raises(Refused, match=place if name != "a.csv" else r"a\.csv:[35]"):
        run(encoder, file, out=out)
    assert [*tmp_path.iterdir()] == [file]
    done = run(encoder, file, out=out, on_error="skip")
    assert (done.rows, done.skipped) == (2, skipped) and place in done.first_skipped
    np.testing.assert_allclose(np.load(out), encoder.encode(["a cat", "the dog"]), atol=2e-6)


def test_an_integer_that_no_float_can_have_is_named(encoder: Encoder, tmp_path: Path) -> None:
    """Put the integer and a float into different parts. The first pass sees only their types."""
    rows = [{"text": "a cat", "year": year} for year in (2**60 + 1, 1, 1, 1, 1.5)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(Refused, match=r"'year' has values .* between .*a\.jsonl:1 and .*a\.jsonl:4"):
        run(encoder, tmp_path / "a.jsonl", out=tmp_path / "out.parquet", columns=["year"])


def test_a_bad_row_is_skipped_for_a_value_in_a_list_or_an_object(encoder: Encoder, tmp_path: Path) -> None:
    file, out = tmp_path / "a.jsonl", tmp_path / "out.parquet"
    rows = (b'{"text": "a cat", "tags": %s}\n' % tags for tags in (b'[{"a": "b"}]', b'[{"a": "\xff"}]', b"[]"))
    file.write_bytes(b"".join(rows))
    done = run(encoder, file, out=out, columns=["tags"], on_error="skip")
    assert (done.rows, done.first_skipped) == (2, f"{file}:2: not UTF-8")
    assert table(out)["tags"] == [[{"a": "b"}], []]


def test_an_output_that_is_a_folder_is_refused_before_the_work(encoder: Encoder, lines: Path, tmp_path: Path) -> None:
    (tmp_path / "out.npy").mkdir()
    with pytest.raises(Refused, match=r"out\.npy is a folder"):
        run(encoder, lines, out=tmp_path / "out.npy", force=True)
    assert {*tmp_path.iterdir()} == {lines, tmp_path / "out.npy"}


def test_a_damaged_file_is_no_bad_row(encoder: Encoder, tmp_path: Path) -> None:
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress(b"text,n\n" + b"a cat,1\n" * 1000)[:-9])
    with pytest.raises(Refused, match=r"a\.csv\.gz"):
        run(encoder, file, out=tmp_path / "out.npy", on_error="skip")


@pytest.mark.parametrize("room", [1000, 40_000])
def test_a_full_disk_ends_with_1_and_names_the_file(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], room: int
) -> None:
    """Fill the disk while a part is written, or while the parts are joined. A limit on the size of files fills it."""
    monkeypatch.setattr(embedding, "ROWS", 200)
    file = text_file(tmp_path / "a.txt", [str(i) for i in range(400)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        status = main(["embed", str(file), "--out", str(tmp_path / "out.npy"), "--model", str(tiny_bundle), *ENGINE])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert ".npy" in said and "too large" in said


def test_rows_on_which_the_tokenizer_fails_are_named(
    encoder: Encoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(texts: Sequence[str], **options: Any) -> Any:
        if "rain" in texts:
            raise TokenizerFailure("too many steps")
        return Encoder.encode(encoder, texts, **options)

    monkeypatch.setattr(encoder, "encode", encode)
    with pytest.raises(Refused, match=r"a\.txt:5 and .*a\.txt:8: too many steps"):
        run(encoder, lines, out=tmp_path / "out.npy")


@pytest.mark.parametrize("step", ["__init__", "run"])
def test_an_engine_that_fails_ends_with_1_and_one_line(
    tiny_bundle: Path, lines: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], step: str
) -> None:
    class OwnError(Exception):
        """Error of an engine, which has no base class of ours."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OwnError("no kernel\nfor this node")

    monkeypatch.setattr(OnnxRuntime, step, fail)
    out = lines.with_name("out.npy")
    assert main(["embed", str(lines), "--out", str(out), "--model", str(tiny_bundle), *ENGINE]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "tiny" in said and said.endswith("no kernel\n") and not out.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dimensions": 33}, "dimensions: 33"),
        ({"dimensions": 0, "encoding": "int8"}, "dimensions: 0"),
        ({"prompt_name": "query"}, "prompt_name"),
        ({"columns": ["year"]}, r"\.npy has no columns"),
        ({"text_column": "body"}, "body"),
    ],
)
def test_options_that_do_not_fit_are_named(
    encoder: Encoder, lines: Path, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        run(encoder, lines, out=tmp_path / "out.npy", **options)


def test_a_column_is_written_once(encoder: Encoder, lines: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="two columns 'id'"):
        run(encoder, lines, out=tmp_path / "out.parquet", columns=["id"])


def test_without_pyarrow_the_extra_is_named(
    encoder: Encoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Refused, match=r"isosphere\[data\]"):
        run(encoder, lines, out=tmp_path / "out.parquet")
    assert run(encoder, lines, out=tmp_path / "out.npy").rows == 18


def test_without_a_terminal_progress_is_lines(
    encoder: Encoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "LINE_EVERY", 0)
    stream = io.StringIO()
    embed(encoder, [str(lines)], tmp_path / "out.npy", Options(), force=False, stream=stream)
    said = stream.getvalue().splitlines()
    assert len(said) == 5 and said[0].startswith("4 of 18 rows, ") and "0:00:00 left" in said[-1]


def test_the_command(tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "a.csv", tmp_path / "out.parquet"
    file.write_text(f"key,Body,year\n7,a cat,2001\n8,{'the cat ' * 100},2002\n9\n")
    command = ["embed", str(file), "--out", str(out), "--model", str(tiny_bundle), *ENGINE]
    command += ["--text-column", "body", "--id-column", "key", "--columns", "year"]
    assert main(command) == 2
    assert "a.csv:4" in capsys.readouterr().err
    assert main([*command, "--on-error", "skip"]) == 0
    said = capsys.readouterr().err
    assert "skipped: 1; the first: " in said and "truncated to 64 tokens: 1" in said and "2 rows by tiny" in said
    assert table(out)["id"] == ["7", "8"] and table(out)["year"] == ["2001", "2002"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.txt", "--out", "a.npy", "--model", "defautl"], "did you mean default"),
        (["nowhere.txt", "--out", "a.npy"], "nowhere.txt"),
        (["nowhere.txt", "--out", "a.csv"], ".npy"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    tiny_bundle: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [] if "--model" in arguments else ["--model", str(tiny_bundle), *ENGINE]
    try:
        assert main(["embed", *arguments, *model]) == 2
    except SystemExit as end:
        assert end.code == 2
    said = capsys.readouterr().err
    assert says.casefold() in said.casefold() and said.count("\n") == 1
