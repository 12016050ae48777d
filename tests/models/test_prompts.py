"""Tests of an encoder's prompts: their options at export, and their effect on a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.__main__ import main
from models.bundle import bundle
from models.encoder.encoder import Encoder
from models.export import export


def test_prompts_travel_with_the_encoder(tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="cls")
    encoder.prompts = {"query": "query: "}
    made = export.export(encoder, tmp_path / "bundle", name="t", backbone="tiny")
    assert made.manifest.prompts == {"query": "query: "}
    assert Encoder.load(tmp_path / "bundle").prompts == {"query": "query: "}


@pytest.mark.slow
def test_prompts_are_given_where_the_source_has_none(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = ["--prompt", "query=ask: why=", "--prompt", "passage=tell: "]
    assert main(["export", str(tiny_bundle), "--out", str(out), "--no-measure", *given]) == 0
    before, made = bundle.load(tiny_bundle).manifest, bundle.load(out).manifest
    assert made.prompts == {"query": "ask: why=", "passage": "tell: "}
    assert made.fingerprint != before.fingerprint and made.golden == before.golden
    assert "`ask: why=`" in (out / "README.md").read_text()
    said = capsys.readouterr().out
    assert "add 'ask: why=' before queries" in said and "add 'tell: ' before documents" in said
    again = tmp_path / "again"
    assert main(["export", str(out), "--out", str(again), "--no-measure", "--prompt", "query="]) == 0
    assert bundle.load(again).manifest.prompts == {"query": "", "passage": "tell: "}
    assert "before queries" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["export", str(tiny_bundle), "--out", str(out), "--prompt", "ask: "])
    assert "--prompt: 'ask: ' is not NAME=TEXT" in capsys.readouterr().err
    for wrong, named in (
        (["query=a", "--prompt", "query=b"], "--prompt query is given twice"),
        ([f"query={'a ' * 62}"], "prompt query: its 64 tokens leave no room for a text"),
    ):
        assert main(["export", str(tiny_bundle), "--out", str(out), "--no-measure", "--prompt", *wrong]) == 2
        assert named in capsys.readouterr().err
    assert bundle.load(out).manifest.prompts == made.prompts


@pytest.mark.slow
def test_other_prompts_keep_the_scores_that_no_search_gave(
    tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {"STSB": 80.0, "scifact nDCG@10": 60.0}
    encoder = Encoder.load(tiny_backbone, pooling="mean")
    export.export(encoder, tmp_path / "one", name="t", backbone="tiny", scores=scores)
    for prompt, kept in (("query=", {*scores}), ("query=ask: ", {"STSB"})):
        command = ["export", str(tmp_path / "one"), "--out", str(tmp_path / "two"), "--no-measure", "--prompt", prompt]
        assert main(command) == 0
        assert set(bundle.load(tmp_path / "two").manifest.scores or {}) - {"onnx_parity"} == kept
    capsys.readouterr()
