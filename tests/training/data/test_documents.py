"""Tests of the conversion of a domain's documents to a training corpus."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training import cli
from training.data.corpus import open_corpus
from training.data.documents import Counts, texts, write
from training.data.files import CorpusError
from training.data.sentences import clean_sentences

SENTENCES = (
    "The kidney filters about a hundred litres a day.",
    "A mutation of this gene shortens the telomeres.",
    "Most of the patients recovered within two weeks.",
)


def test_title_and_text_of_json_lines_are_cut_apart(tmp_path: Path) -> None:
    file, corpus = tmp_path / "corpus.jsonl", tmp_path / "corpus.txt"
    rows = [
        {"_id": "1", "title": SENTENCES[0], "text": " ".join(SENTENCES[1:])},
        {"_id": "2", "text": SENTENCES[1]},
        {"_id": "3", "title": None, "text": SENTENCES[2]},
    ]
    file.write_text("\n" + "".join(json.dumps(row) + "\n \n" for row in rows))
    assert write([file], corpus) == Counts(texts=3, sentences=5)
    assert corpus.read_text().splitlines() == [*SENTENCES, *SENTENCES[1:]]


def test_paragraphs_of_text_hold_whole_sentences(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt.gz"
    text = f"A heading\n\n{SENTENCES[0][:20]}\n{SENTENCES[0][20:]} {SENTENCES[1]}\n \n>>> print(1)\n{SENTENCES[2]}\n"
    file.write_bytes(gzip.compress(text.encode()))
    assert write([file], tmp_path / "corpus.txt") == Counts(texts=3, sentences=2)
    first, second = (tmp_path / "corpus.txt").read_text().splitlines()
    assert first.replace(" ", "") == SENTENCES[0].replace(" ", "") and second == SENTENCES[1]


@pytest.mark.parametrize("name", ["corpus.JSONL", "CORPUS.NDJSON.GZ"])
def test_a_format_is_known_in_upper_case_too(name: str, tmp_path: Path) -> None:
    text = json.dumps({"title": SENTENCES[0], "text": SENTENCES[1]}).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("GZ") else text)
    assert list(texts([tmp_path / name])) == [f"{SENTENCES[0]}\n\n{SENTENCES[1]}"]


@given(st.lists(st.lists(st.sampled_from((*SENTENCES, "too short.")), min_size=1), min_size=1))
def test_json_and_text_give_the_same_sentences(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]]
) -> None:
    folder = tmp_path_factory.mktemp("documents")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": " ".join(of)}) + "\n" for of in documents))
    (folder / "a.txt").write_text("\n\n".join(" ".join(of) for of in documents))
    of_json, of_text = (list(texts([folder / name])) for name in ("a.jsonl", "a.txt"))
    assert [[*clean_sentences(text)] for text in of_json] == [[*clean_sentences(text)] for text in of_text]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"a\.jsonl:2: not JSON"),
        ("[" * 100_000, r"a\.jsonl:2: nested too deeply$"),
        (r'{"text": "hello \ud83d there"}', r"a\.jsonl:2: contains half a surrogate pair"),
        ("[]", r"a\.jsonl:2: expected a JSON object"),
        ('{"title": "x"}', r"a\.jsonl:2: title or text is missing or not a string"),
        ('{"title": "x", "text": null}', r"a\.jsonl:2: title or text is missing or not a string"),
        ('{"title": 1, "text": "x"}', r"a\.jsonl:2: title or text is missing or not a string"),
    ],
)
def test_a_broken_line_is_named_and_nothing_is_written(line: str, message: str, tmp_path: Path) -> None:
    file, corpus = tmp_path / "a.jsonl", tmp_path / "corpus.txt"
    file.write_text(f'{{"text": "{SENTENCES[0]}"}}\n{line}\n')
    corpus.write_text("as it was\n")
    with pytest.raises(CorpusError, match=message):
        write([file], corpus)
    assert corpus.read_text() == "as it was\n" and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.json", "a.parquet", "a.csv.gz", "A.CSV", "A.CSV.GZ"])
def test_a_format_whose_lines_are_no_paragraphs_is_refused(name: str, tmp_path: Path) -> None:
    file, corpus = tmp_path / name, tmp_path / "out.txt"
    file.write_text('id,text\n1,"The committee has met on every Monday of the year."\n')
    with pytest.raises(CorpusError, match=rf"{name}: \.(csv|tsv|json|parquet) is not supported"):
        write([file], corpus)
    assert not corpus.exists()


def test_what_holds_no_sentence_or_would_be_overwritten_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x = 1\n")
    with pytest.raises(CorpusError, match="no clean English sentence of 6 to 80 words in 1 texts"):
        write([file], tmp_path / "corpus.txt")
    with pytest.raises(CorpusError, match="name another file with --out"):
        write([file], tmp_path / "." / "a.txt")
    assert file.read_text() == "x = 1\n"


def test_the_command_writes_what_train_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, corpus = tmp_path / "a.txt", tmp_path / "corpus.txt"
    file.write_text("\n\n".join(f"Patient number {n} recovered within two weeks." for n in range(40)))
    assert cli.main(["data", "sentences", str(file), "--out", str(corpus)]) == 0
    assert capsys.readouterr().out == f"{corpus}: 40 sentences of 40 texts\n"
    census = open_corpus([str(corpus)]).census
    assert census.sentences + len(census.held_out) == 40
    assert cli.main(["data", "sentences", str(tmp_path / "none.txt"), "--out", str(corpus)]) == 2
    assert "none.txt: No such file" in capsys.readouterr().err
