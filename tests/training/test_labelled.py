"""Tests of the files of SentEval's transfer tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.evaluation.labelled import (
    TRANSFER_TASKS,
    Example,
    Labelled,
    LabelledFiles,
    opposites,
    paraphrases,
    questions,
    treebank,
)
from training.evaluation.pairs import DataError, lines

HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def write(folder: Path, **contents: str | bytes) -> list[Path]:
    files = []
    for name, content in contents.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        files.append(folder / name)
    return files


def test_two_files_are_two_classes_and_an_empty_line_is_a_sentence(tmp_path: Path) -> None:
    files = write(tmp_path, positive="so  good\n\nfine \n", negative="bad\n")
    expected = [Example(("so good",), 1), Example(("",), 1), Example(("fine",), 1), Example(("bad",), 0)]
    assert opposites(*files) == Labelled(expected)


def test_treebank_has_three_parts(tmp_path: Path) -> None:
    files = write(tmp_path, train="a  fine film \t1\n", dev="dull\t0\n", test="été\t1\r\n")
    assert treebank(*files) == Labelled([Example(("a fine film",), 1)], [Example(("dull",), 0)], [Example(("été",), 1)])


def test_paraphrases_are_pairs_below_a_header_with_or_without_its_mark(tmp_path: Path) -> None:
    row = '1\t7\t8\tHe said " so .\tSo  he said .\n'
    files = write(tmp_path, train=HEADER + row, test=HEADER.removeprefix("\ufeff") + row.replace("1", "0"))
    texts = ('He said " so .', "So he said .")
    assert paraphrases(*files) == Labelled([Example(texts, 1)], test=[Example(texts, 0)])


def test_questions_are_latin_1_and_their_fine_class_is_left_out(tmp_path: Path) -> None:
    files = write(tmp_path, train="NUM:dist How far : Gr\xe8ve ?\n".encode("latin-1"), test="ABBR:exp What is a CD ?\n")
    assert questions(*files) == Labelled(
        [Example(("How far : Gr\xe8ve ?",), 5)], test=[Example(("What is a CD ?",), 0)]
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("fine\t1\nfilm\n", r"train:2: 1 columns separated by tabs, expected 2"),
        ("fine\t1\nfilm\t1\t1\n", r"train:2: 3 columns separated by tabs, expected 2"),
        ("fine\t1\nfilm\t2\n", r"train:2: '2' is not a label, expected 0 or 1"),
        ("fine\t1\n \t0\n", r"train:2: the sentence is empty"),
        (b"fine\t1\nfi\xe8\t0\n", r"train:2: not UTF-8 in column 3"),
        ("", r"train:1: 1 columns"),
    ],
)
def test_a_broken_row_of_the_treebank_is_named(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        treebank(*write(tmp_path, train=content, dev="x\t1\n", test="x\t1\n"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\t7\t8\ta\tb\n", r"test:1: expected a header that begins with Quality"),
        (HEADER + "1\t7\t8\ta\n", r"test:2: 4 columns"),
        (HEADER + "1\t7\t8\ta\t\n", r"test:2: the sentence is empty"),
        (HEADER + "one\t7\t8\ta\tb\n", r"test:2: 'one' is not a label"),
    ],
)
def test_a_broken_row_of_the_paraphrases_is_named(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        paraphrases(*write(tmp_path, train=HEADER + "1\t7\t8\ta\tb\n", test=content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("NUM How far ?\n", r"train:1: expected two classes separated by a colon"),
        ("NUM:dist How far ?\nNAME:x Who ?\n", r"train:2: 'NAME' is not a label, expected one of ABBR, DESC"),
        ("NUM:dist\n", r"train:1: the sentence is empty"),
    ],
)
def test_a_broken_question_is_named(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        questions(*write(tmp_path, train=content, test="ABBR:exp x\n"))


def test_missing_files_and_missing_rows_are_named(tmp_path: Path) -> None:
    task = LabelledFiles("CR", ("pos", "neg"), opposites, (3, 0, 0))
    assert not task.present(tmp_path)
    with pytest.raises(DataError, match=r"CR/pos: No such file"):
        task.load(tmp_path)
    folder = tmp_path / "senteval/downstream/CR"
    folder.mkdir(parents=True)
    write(folder, pos="good\n", neg="bad\n")
    assert task.present(tmp_path)
    with pytest.raises(DataError, match=r"CR: 2/0/0 examples in train/dev/test, expected 3/0/0"):
        task.load(tmp_path)


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), min_size=1))
def test_lines_are_what_was_written(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    file = tmp_path_factory.mktemp("lines") / "file"
    file.write_bytes("".join(f"{text}\n" for text in texts).encode())
    assert lines(file) == texts


def test_real_data_have_the_published_counts_and_classes(test_data: Path) -> None:
    found = {task: files.load(test_data) for task, files in TRANSFER_TASKS.items()}
    assert {task: labelled.rows for task, labelled in found.items()} == {
        **{"MR": (10662, 0, 0), "CR": (3775, 0, 0), "SUBJ": (10000, 0, 0), "MPQA": (10606, 0, 0)},
        **{"SST2": (67349, 872, 1821), "TREC": (5452, 0, 500), "MRPC": (4076, 0, 1725)},
    }
    positive = {task: int(np.sum([example.label for example in labelled.train])) for task, labelled in found.items()}
    assert (positive["MR"], positive["CR"], positive["MPQA"], positive["MRPC"]) == (5331, 2407, 3312, 2753)
    assert {len(example.texts) for example in found["MRPC"].test} == {2}
    assert all(files.present(test_data) for files in TRANSFER_TASKS.values())
