"""Tests of the catalogue's entries against the real files, and of the counts of each kind."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from training.evaluation.datasets.catalogue import CATALOGUE, SENTEVAL, Source, collection, text_lines
from training.evaluation.datasets.fetch import provide
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS, DataError


def test_every_source_is_at_one_commit_and_every_dataset_says_what_it_is() -> None:
    assert list(CATALOGUE) == ["sts", "transfer", "wiki1m", "scifact"]
    for dataset in CATALOGUE.values():
        assert dataset.summary
        assert dataset.files
        for source in dataset.sources:
            assert len(source.commit) == 40
            assert set(source.commit) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"a\nb\n", "2 lines, expected 3"),
        (b"a\nb\nc\nd", "4 lines, expected 3"),
        (b"a\nb\xff\nc\n", "corpus.txt:2: not UTF-8 in column 2"),
        (None, "corpus.txt: No such file"),
    ],
)
def test_a_corpus_has_so_many_lines_of_utf8(tmp_path: Path, content: bytes | None, wrong: str) -> None:
    check = text_lines("corpus.txt", 3)
    if content is not None:
        (tmp_path / "corpus.txt").write_bytes(content)
    with pytest.raises(DataError) as caught:
        check(tmp_path)
    assert wrong in str(caught.value)


def test_other_line_breaks_than_newlines_end_no_line(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a\u2028b\r\nc\x0bd\ne", encoding="utf-8", newline="")
    assert text_lines("corpus.txt", 3)(tmp_path) == "3 lines"


@pytest.mark.parametrize("expected", [(3, (1, 2)), (2, (2, 2)), (2, (1, 1))])
def test_a_collection_is_counted_by_split(tmp_path: Path, expected: tuple[int, tuple[int, int]]) -> None:
    (tmp_path / "few" / "qrels").mkdir(parents=True)
    rows = [json.dumps({"_id": identity, "text": "some"}) + "\n" for identity in "ab"]
    (tmp_path / "few" / "corpus.jsonl").write_text("".join(rows))
    (tmp_path / "few" / "queries.jsonl").write_text("".join(rows))
    (tmp_path / "few" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\na\ta\t1\na\tb\t0\n")
    assert collection("few", 2, test=(1, 2))(tmp_path) == "2 documents, 1 test queries"
    documents, split = expected
    with pytest.raises(DataError, match="few: 2 documents, 1 queries and 2 judgements in test, expected"):
        collection("few", documents, test=split)(tmp_path)


def _as_on_the_hub(data: Path, folder: Path) -> Callable[[Source], Path]:
    """Pack the real files as on the hub, with one archive for SentEval's."""
    with tarfile.open(folder / "senteval.tar", "w") as archive:
        archive.add(data / SENTEVAL, arcname="./data/downstream")
    for name in ("corpus", "queries"):
        content = (data / "retrieval/scifact" / f"{name}.jsonl").read_bytes()
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(content, 1))
    for name in ("test.tsv", "train.tsv"):
        (folder / name).write_bytes((data / "retrieval/scifact/qrels" / name).read_bytes())
    (folder / "wiki1m_for_simcse.txt").write_bytes(b"A sentence of some length .\n" * 1_000_000)
    return lambda source: folder / source.file


@pytest.mark.slow
def test_the_real_data_come_through_the_real_catalogue(test_data: Path, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    download = _as_on_the_hub(test_data, tmp_path / "hub")
    folder, said = tmp_path / "data", io.StringIO()
    for name, dataset in CATALOGUE.items():
        provide(name, dataset, folder, said, download=download)
    assert all(task.load(folder) for task in STS_TASKS.values())
    assert all(task.load(folder) for task in TRANSFER_TASKS.values())
    assert "5183 documents, 300 test queries, 809 train queries" in said.getvalue()
    assert not (folder / SENTEVAL / "SST" / "fine").exists(), "only the tasks asked for"
    for name, dataset in CATALOGUE.items():
        again = io.StringIO()
        provide(name, dataset, folder, again, download=None)
        assert "already there" in again.getvalue()
    for file in json.loads((folder / "checksums.json").read_text())["sts"]["files"]:
        assert (folder / file).read_bytes() == (test_data / file).read_bytes()
