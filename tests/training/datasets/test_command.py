"""Tests of `isosphere data` without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.datasets.samples import Hub, contents
from training import cli
from training.cli import data
from training.evaluation.datasets.catalogue import CATALOGUE, Dataset

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOSPHERE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def small(dataset: Dataset, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "sts", dataset)
    monkeypatch.setattr(data, "from_hub", hub)


def call(*arguments: str) -> int:
    """Return the exit code of a command."""
    try:
        return cli.main(["data", *arguments])
    except SystemExit as end:
        return int(end.code or 0)


def test_get_ends_with_the_folder_alone_on_stdout(small: None, hub: Hub, tmp_path: Path, capsys: Capture) -> None:
    assert call("get", "sts", "sts") == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'data'}\n"
    assert err.count("archive.tar of some/archive") == 1
    assert "already there" not in err, "named twice is asked for once"
    assert call("get", "sts", "--to", str(tmp_path / "other")) == 0
    assert contents(tmp_path / "other") == contents(tmp_path / "data")


def test_list_says_what_is_here(small: None, tmp_path: Path, capsys: Capture) -> None:
    call("get", "sts")
    capsys.readouterr()
    assert call("list") == 0
    out = capsys.readouterr().out
    assert "sts: a small one (downloaded at 2" in out
    assert "  120 MB: wiki1m_for_simcse.txt of princeton-nlp/datasets-for-simcse, commit " in out
    assert "(not here)" in out
    (tmp_path / "data/text/ids.tsv").unlink()
    assert call("list") == 0
    assert "sts: a small one (incomplete)" in capsys.readouterr().out


def test_verify_takes_all_that_is_here(small: None, tmp_path: Path, capsys: Capture) -> None:
    call("get", "sts")
    capsys.readouterr()
    assert call("verify") == 0
    assert capsys.readouterr().out.startswith("sts: already there, 4 files")
    (tmp_path / "data/corpus").mkdir()
    (tmp_path / "data/corpus/wiki1m.txt").write_text("one line\n")
    assert call("verify") == 2
    assert "wiki1m.txt: 1 lines, expected 1000000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["get", "stss"], "'stss' is none of"),
        (["verify", "stss"], "dataset 'stss' is none of sts, transfer, wiki1m, scifact; did you mean sts?"),
        (["verify"], "contains none of sts, transfer, wiki1m, scifact"),
        (["verify", "scifact"], "corpus.jsonl: No such file or directory; `isosphere data get scifact"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments: list[str], line: str, capsys: Capture) -> None:
    assert call(*arguments) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_without_a_network_get_says_what_to_do(name: str, tmp_path: Path, capsys: Capture) -> None:
    assert call("get", name) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2, "one line of progress, one of what to do"
    for source in CATALOGUE[name].sources:
        assert source.file in err[1]
        assert f"hub dataset {source.repo}, commit {source.commit}" in err[1]
        assert str(tmp_path / "data" / "downloads" / source.repo) in err[1]
    assert not (tmp_path / "data").exists()


def test_the_hubs_local_cache_needs_no_network(tmp_path: Path, capsys: Capture) -> None:
    (source,) = CATALOGUE["wiki1m"].sources
    snapshot = tmp_path / "cache" / f"datasets--{source.repo.replace('/', '--')}" / "snapshots" / source.commit
    snapshot.mkdir(parents=True)
    (snapshot / source.file).write_text("one line\n")
    assert call("get", "wiki1m") == 2
    assert f"{snapshot / source.file}: corpus/wiki1m.txt: 1 lines, expected 1000000" in capsys.readouterr().err
