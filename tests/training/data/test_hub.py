"""Tests of data sets on the hub as corpora: URLs and cached files."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub.constants
import pyarrow
import pyarrow.parquet
import pytest

from models.errors import Refused
from models.remotes.base import RemoteError
from tests.models.fake_hub import FakeHub
from training.data.corpus import open_corpus
from training.data.files import CorpusError, resolve_files, sentences
from training.evaluation.pairs import own_pairs

NAME = "org/notes"


def parquet(**columns: Sequence[object]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.fixture
def dataset(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    repository = hub.make(
        f"datasets/{NAME}",
        {
            "README.md": b"# not read\n",
            "photo.png": b"\x89PNG",
            "data/train.parquet": parquet(text=["from parquet"], n=[1]),
            "data/more.csv.gz": gzip.compress(b"text\nfrom csv\n"),
            "data/old/notes.txt": b"from text\n",
        },
    )
    repository.commit("refs/convert/parquet", {"default/train/0000.parquet": parquet(text=["converted"])})
    return hub


def read(url: str) -> list[str]:
    return [line.rstrip("\n") for line in sentences(resolve_files([url]))]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", ["from csv", "from text", "from parquet"]),
        ("/data", ["from csv", "from text", "from parquet"]),
        ("@main/data/train.parquet", ["from parquet"]),
        ("/data/*.parquet", ["from parquet"]),
        ("/**/*.txt", ["from text"]),
        ("@~parquet/default/train", ["converted"]),
        ("@refs/convert/parquet/default/train/*.parquet", ["converted"]),
    ],
)
def test_a_url_names_a_data_set_a_folder_a_file_or_a_pattern(dataset: FakeHub, url: str, expected: list[str]) -> None:
    assert read(f"hf://datasets/{NAME}{url}") == expected
    assert {"README.md", "photo.png"}.isdisjoint(dataset.sent) and len(dataset.sent) == len(expected)


def test_a_data_set_is_downloaded_once_and_read_without_a_network(
    dataset: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"sentence number {n}" for n in range(50)]
    dataset.make(f"datasets/{NAME}", {"a.parquet": parquet(text=rows), "b.txt": b"another file\n"})
    url = f"hf://datasets/{NAME}/a.parquet"
    corpus = open_corpus([url])
    assert next(corpus.batches(8, seed=0)) and corpus.name == url
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert open_corpus([url]).census == corpus.census and dataset.sent == ["a.parquet"]
    with pytest.raises(RemoteError, match=rf"^hf://datasets/{NAME}/b\.txt: .*incomplete"):
        read(f"hf://datasets/{NAME}/b.txt")


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("hf://org/notes", Refused, "expected hf://datasets/OWNER/NAME"),
        ("hf://datasets/notes", Refused, "expected hf://datasets/OWNER/NAME"),
        (f"hf://datasets/{NAME}/none.txt", Refused, r"none\.txt: no such file, and no folder with files of \.txt, "),
        (f"hf://datasets/{NAME}/*.xyz", CorpusError, r"\*\.xyz: no file matches"),
        (f"hf://datasets/{NAME}@v9", RemoteError, rf"^hf://datasets/{NAME}@v9: 404 .*"),
        ("hf://datasets/org/absent", RemoteError, r"^hf://datasets/org/absent: .*"),
    ],
)
def test_what_is_not_there_is_named(dataset: FakeHub, url: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as refusal:
        resolve_files([url])
    assert "\n" not in str(refusal.value)


def test_pairs_of_the_hub_choose(dataset: FakeHub) -> None:
    table = parquet(sentence1=["a", "b"], sentence2=["c", "d"], score=[0.5, 1.0], genre=["x", None])
    dataset.make("datasets/org/pairs", {"dev.parquet": table})
    assert [pair.gold for pair in own_pairs("hf://datasets/org/pairs/dev.parquet")] == [0.5, 1.0]
