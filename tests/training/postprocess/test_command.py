from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from models.bundle import bundle
from models.bundle.bundle import BundleError
from models.encoder.encoder import Encoder
from models.export.export import ExportError
from training.cli import postprocess
from training.cli.options import parse
from training.config import ConfigError
from training.evaluation.pairs import DataError


def call(*arguments: str) -> int:
    options = parse(["postprocess", *arguments])
    return int(options.load()(options))


@pytest.mark.slow
def test_it_leaves_a_bundle_and_says_what_was_fitted(
    tiny_backbone: Path, corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "white"
    arguments = ["--pooling", "mean", "--max-length", "16", "--corpus", str(corpus_file), "--set", "dims=12"]
    assert call("whitening", str(tiny_backbone), "--out", str(out), *arguments, "--seed", "5") == 0
    assert capsys.readouterr().out == f"{out}: whitening, 32 to 12 dimensions, sentences 228\n"
    manifest = bundle.load(out).manifest
    assert (manifest.name, manifest.dim, manifest.max_length) == ("white", 12, 16)
    assert (manifest.backbone, manifest.objective) == (str(tiny_backbone), None)
    run = manifest.run or {}
    assert run["postprocess"] == "whitening"
    assert run["params"] == {"dims": 12, "power": 1.0, "centred": True}
    assert run["seed"] == 5
    assert run["corpus"]["sentences"] == run["fitted"]["sentences"] == 228
    assert run["corpus"]["held_out"] == 12  # A promotion may compare encoders by this score.
    assert Encoder.load(out).dim == 12

    (repeat,) = re.findall("To fit the transform again, run `(.*)`. Add `--corpus", (out / bundle.CARD).read_text())
    words = shlex.split(repeat.replace("DIR", str(tmp_path / "again")))
    assert call(*words[words.index("postprocess") + 1 :], "--corpus", str(corpus_file)) == 0
    assert bundle.load(tmp_path / "again").manifest.fingerprint == manifest.fingerprint


@pytest.mark.slow
def test_a_bundle_keeps_its_backbone_and_objective_and_is_not_post_processed_twice(
    tiny_bundle: Path, corpus_file: Path, tmp_path: Path
) -> None:
    trained = tmp_path / "trained"
    from models.export.export import export

    export(Encoder.load(tiny_bundle), trained, name="trained", backbone="bert", objective="simcse")
    assert call("flow", str(trained), "--out", str(tmp_path / "flow"), "--corpus", str(corpus_file)) == 0
    manifest = bundle.load(tmp_path / "flow").manifest
    assert (manifest.backbone, manifest.objective, manifest.pooling) == ("bert", "simcse", "mean")
    assert (manifest.run or {})["fitted"]["bits_per_dim"] < 20
    with pytest.raises(ValueError, match="already has a transform"):
        call("dcl", str(tmp_path / "flow"), "--out", str(tmp_path / "twice"), "--corpus", str(corpus_file))
    assert not (tmp_path / "twice").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("dims", "--set dims: expected key=value"),
        ("tau=1", "--set tau=1: 'tau' is none of centred, dims, power"),
        ("dims=many", "--set dims=many: expected a whole number, got 'many'"),
        ("dims=-1", "dims: -1 is not above 0"),
    ],
)
def test_a_wrong_setting_is_named(tiny_backbone: Path, tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        call("whitening", str(tiny_backbone), "--out", str(tmp_path / "out"), "--set", setting)


def test_what_would_stop_it_at_the_end_stops_it_before_it_begins(tiny_backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    with pytest.raises(BundleError, match="not a bundle"):
        call("whitening", str(tiny_backbone), "--out", str(tmp_path / "mine"), "--corpus", "nowhere.txt")
    with pytest.raises(DataError, match="contains none of STS12"):
        call("whitening", str(tiny_backbone), "--out", str(tmp_path / "out"), "--eval-data", str(tmp_path))


def test_real_data_judges_the_outcome(
    tiny_backbone: Path, corpus_file: Path, tmp_path: Path, test_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = test_data / "senteval" / "downstream" / "STS" / "STSBenchmark"
    (tmp_path / "STS").mkdir()
    (tmp_path / "STS" / "STSBenchmark").symlink_to(folder)
    arguments = ["--out", str(tmp_path / "out"), "--corpus", str(corpus_file), "--eval-data", str(tmp_path)]
    assert call("whitening", str(tiny_backbone), *arguments) == 0
    scores = json.loads((tmp_path / "out" / bundle.MANIFEST).read_text())["scores"]
    assert set(scores) == {"STSB", "onnx_parity"}
    assert "STSB" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "advised"), [("whitening", True), ("dcl", False)])
def test_rounding_errors_that_whitening_amplified_are_explained(  # noqa: PLR0917
    name: str,
    advised: bool,
    tiny_backbone: Path,
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def differs(*_: object, **__: object) -> None:
        raise ExportError("a short text: ONNX Runtime differs from torch by 2.18e-01, more than 1e-04")

    monkeypatch.setattr(postprocess, "export", differs)
    with pytest.raises(ExportError, match="differs from torch") as refused:
        call(name, str(tiny_backbone), "--out", str(tmp_path / "out"), "--corpus", str(corpus_file))
    assert ("--set dims=N" in str(refused.value)) is advised
