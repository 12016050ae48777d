"""Cross-encoders: recognition, export, parity with transformers, verification."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from models.__main__ import main
from models.bundle import bundle, sources
from models.bundle.bundle import CROSS_ENCODER, Bundle, BundleError
from models.bundle.sources import SourceError
from models.encoder.cross_encoder import CrossEncoder
from models.encoder.encoder import Encoder
from models.export import cross_encoder
from models.export.export import ExportError
from models.remotes import transfer
from models.runtimes import graph
from models.runtimes.graph import Graph

PAIRS = [
    ("a bird", "a red bird can sing in the morning"),
    ("the old man", "the sea"),
    ("", "a"),
    ("the sea " * 50, "the old man " * 50),
    ("a", "the river runs to the sea " * 30),
    ("the river runs to the sea " * 30, "a [SEP] b"),
]


def transformers_scores(folder: Path, texts: list[tuple[str, str]]) -> list[float]:
    """Return the scores of transformers' own tokenizer and model, one pair at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        encoded = [tokenizer(*pair, truncation=True, max_length=64, return_tensors="pt") for pair in texts]
        return [float(model(**one).logits[0, 0]) for one in encoded]


@pytest.fixture(scope="module")
def opened(cross_bundle: Path) -> Bundle:
    return bundle.load(cross_bundle)


def test_scores_are_those_of_transformers(tiny_cross_encoder: Path, opened: Bundle) -> None:
    np.testing.assert_allclose(graph.scores(opened, PAIRS), transformers_scores(tiny_cross_encoder, PAIRS), atol=1e-4)
    assert len(set(graph.scores(opened, PAIRS).round(3).tolist())) == len(PAIRS), "random weights tell pairs apart"


def test_pairs_are_truncated_as_by_transformers(tiny_cross_encoder: Path, opened: Bundle) -> None:
    ours = opened.tokenizer.encode_pairs(PAIRS)
    theirs = AutoTokenizer.from_pretrained(tiny_cross_encoder)
    for tokens, pair in zip(ours, PAIRS, strict=True):
        expected = theirs(*pair, truncation="longest_first", max_length=64)
        assert tokens.ids.tolist() == expected["input_ids"]
        assert tokens.types is not None
        assert tokens.types.tolist() == expected["token_type_ids"]
        assert tokens.truncated == (len(theirs(*pair)["input_ids"]) > 64)
    left = opened.tokenizer.encode_pairs([PAIRS[3]], direction="left")[0]
    theirs.truncation_side = "left"
    assert left.ids.tolist() == theirs(*PAIRS[3], truncation=True, max_length=64)["input_ids"]


def test_the_manifest_has_its_kind_and_golden_scores(tiny_cross_encoder: Path, opened: Bundle) -> None:
    manifest = opened.manifest
    assert (manifest.kind, manifest.dim, manifest.max_length, opened.label) == (CROSS_ENCODER, 1, 64, "LABEL_0")
    golden = [(one.text, one.text_pair or "") for one in manifest.golden]
    expected = transformers_scores(tiny_cross_encoder, golden)
    np.testing.assert_allclose([one.vector[0] for one in manifest.golden], expected, atol=1e-5)
    assert (manifest.scores or {})["onnx_parity"] < 1e-4
    assert graph.golden_difference(opened) < 1e-4
    card = (opened.folder / "README.md").read_text()
    assert "A cross-encoder." in card
    assert "text-ranking" in card


def test_manifests_of_encoders_are_read_by_version_1_0(tiny_bundle: Path) -> None:
    fields = json.loads((tiny_bundle / "manifest.json").read_text())
    assert "kind" not in fields
    assert set(fields["golden"][0]) == {"text", "vector"}


def test_the_commands(tiny_cross_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "ranker"
    assert main(["export", str(tiny_cross_encoder), "--out", str(made), "--max-length", "32"]) == 0
    assert "a cross-encoder of 32 tokens" in capsys.readouterr().out
    assert main(["verify", str(made)]) == 0
    assert "golden scores within" in capsys.readouterr().out
    assert main(["inspect", str(made)]) == 0
    printed = capsys.readouterr()
    assert (json.loads(printed.out)["kind"], printed.err) == (CROSS_ENCODER, "")
    assert main(["export", str(made), "--out", str(tmp_path / "again"), "--name", "again"]) == 0
    again, first = bundle.load(tmp_path / "again").manifest, bundle.load(made).manifest
    assert (again.name, again.backbone) == ("again", str(tiny_cross_encoder))
    assert again.golden == first.golden
    assert main(["publish", str(made), str(tmp_path / "shelf")]) == 0
    assert main(["pull", str(tmp_path / "shelf"), "--out", str(tmp_path / "pulled")]) == 0
    assert isinstance(pulled := transfer.opened(tmp_path / "pulled"), Bundle)
    assert pulled.manifest == first


@pytest.mark.parametrize("option", [["--pooling", "mean"], ["--prompt", "query=q"], ["--fp16"]])
def test_options_of_encoders_are_refused(
    tiny_cross_encoder: Path, tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tiny_cross_encoder), "--out", str(tmp_path / "made"), *option]) == 2
    assert f"{option[0]}: {tiny_cross_encoder} is a cross-encoder" in capsys.readouterr().err


def test_only_one_output_without_a_pooling_is_recognised(tiny_cross_encoder: Path, tmp_path: Path) -> None:
    assert sources.is_cross_encoder(str(tiny_cross_encoder))
    several = Path(shutil.copytree(tiny_cross_encoder, tmp_path / "several"))
    config = json.loads((several / "config.json").read_text())
    (several / "config.json").write_text(json.dumps(config | {"id2label": {"0": "no", "1": "yes"}}))
    assert not sources.is_cross_encoder(str(several))
    pooled = Path(shutil.copytree(tiny_cross_encoder, tmp_path / "pooled"))
    module = {"idx": 0, "name": "0", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    (pooled / "modules.json").write_text(json.dumps([module]))
    assert not sources.is_cross_encoder(str(pooled))


def test_it_is_no_encoder(cross_bundle: Path, opened: Bundle, tiny_bundle: Path) -> None:
    with pytest.raises(SourceError, match=r"manifest\.json: a cross-encoder, which computes no vectors of texts"):
        Encoder.load(cross_bundle)
    with pytest.raises(BundleError, match="a cross-encoder, which computes no vectors of texts"):
        Graph(opened)
    with pytest.raises(BundleError, match="an encoder, which can't score pairs"):
        graph.scores(bundle.load(tiny_bundle), PAIRS)


def test_an_altered_graph_fails_the_export_and_leaves_nothing(
    tiny_cross_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = cross_encoder.write_onnx

    def of_other_weights(encoder: CrossEncoder, file: Path) -> None:
        bias = encoder.model.get_parameter("classifier.bias")
        with torch.no_grad():
            bias.add_(0.1)
            write(encoder, file)
            bias.sub_(0.1)

    monkeypatch.setattr(cross_encoder, "write_onnx", of_other_weights)
    with pytest.raises(ExportError, match="a short pair: ONNX Runtime differs from torch by"):
        cross_encoder.export(CrossEncoder.load(tiny_cross_encoder), tmp_path / "made", name="t", backbone="tiny")
    assert list(tmp_path.iterdir()) == []


def test_missing_weights_are_refused(tiny_backbone: Path, tiny_cross_encoder: Path, tmp_path: Path) -> None:
    headless = Path(shutil.copytree(tiny_cross_encoder, tmp_path / "headless"))
    shutil.copy(tiny_backbone / "model.safetensors", headless / "model.safetensors")
    with pytest.raises(SourceError, match="the weights lack"):
        CrossEncoder.load(headless)
