from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import transformers
from safetensors import SafetensorError
from transformers import PreTrainedModel

from models import cpus
from models.__main__ import main
from models.bundle import bundle
from models.bundle.bundle import BundleError
from models.bundle.sources import SourceError
from models.encoder.encoder import Encoder
from models.encoder.pooling import POOLINGS
from models.encoder.transform import Affine
from models.export import export
from models.export.export import GOLDEN_SENTENCES, ExportError, check_parity, write_onnx
from models.runtimes import available, choice, measurement
from models.runtimes.base import Options
from models.runtimes.graph import golden_cosine
from models.runtimes.measurement import Measured
from tests.conftest import soon

TEXTS = ["The man plays the guitar.", "a", "", "The river runs to the sea. " * 20]


def _embed(folder: Path, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    opened = bundle.load(folder)
    encoder = Encoder.load(folder)
    ids, mask = encoder.tokenizer.pad(encoder.tokenizer.encode(texts))
    session = ort.InferenceSession(str(opened.onnx), providers=["CPUExecutionProvider"])
    vectors, norms = session.run(["sentence_embedding", "norm"], {"input_ids": ids, "attention_mask": mask})
    return vectors, norms


@pytest.fixture(scope="module", params=soon([*POOLINGS, "lasttoken+max", "max+mean"], "mean", "first_last_1"))
def pooled_bundle(
    request: pytest.FixtureRequest, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("pooled") / str(request.param)
    export.export(Encoder.load(tiny_backbone, pooling=request.param), folder, name="t", backbone="tiny")
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # sentence-transformers' own
def test_sentence_transformers_opens_every_pooling_and_agrees(pooled_bundle: Path) -> None:
    from sentence_transformers import SentenceTransformer

    vectors, _ = _embed(pooled_bundle, TEXTS)
    theirs = SentenceTransformer(str(pooled_bundle), device="cpu").encode(TEXTS)
    assert (vectors * theirs).sum(axis=1).min() > 0.9999


def test_the_graph_gives_unit_vectors_and_the_norm_they_were_divided_by(pooled_bundle: Path) -> None:
    vectors, norms = _embed(pooled_bundle, TEXTS)
    pooled = Encoder.load(pooled_bundle).encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors * norms[:, None], pooled, atol=1e-4)


def test_a_bundle_loads_back_as_the_encoder_it_was_made_of(tiny_backbone: Path, tiny_bundle: Path) -> None:
    original, again = Encoder.load(tiny_backbone, pooling="mean"), Encoder.load(tiny_bundle)
    assert again.pooling == "mean"
    assert again.max_length == 64
    np.testing.assert_array_equal(original.encode(TEXTS), again.encode(TEXTS))


def test_no_dropout_and_no_external_data_in_the_graph(tiny_bundle: Path) -> None:
    graph = onnx.load(tiny_bundle / bundle.ONNX, load_external_data=False).graph
    assert "Dropout" not in {node.op_type for node in graph.node}
    assert all(tensor.data_location != onnx.TensorProto.EXTERNAL for tensor in graph.initializer)


def test_a_plain_fast_tokenizer_has_the_name_that_every_transformers_knows(tiny_bundle: Path) -> None:
    described = json.loads((tiny_bundle / "tokenizer_config.json").read_text())
    assert described["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_an_encoder_in_training_mode_is_exported_without_dropout_and_stays_in_it(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="mean").train()
    write_onnx(encoder, tmp_path / "model.onnx")
    assert check_parity(encoder, tmp_path / "model.onnx") < 1e-5
    assert encoder.training


def test_parity_above_the_bound_fails_the_export_and_leaves_nothing(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="mean")

    def of_slightly_other_weights(encoder: Encoder, file: Path, exporter: str) -> None:
        bias = encoder.backbone.get_parameter("embeddings.LayerNorm.bias")
        with torch.no_grad():
            bias[0] += 1e-2
            write_onnx(encoder, file, exporter)
            bias[0] -= 1e-2

    monkeypatch.setattr(export, "write_onnx", of_slightly_other_weights)
    with pytest.raises(ExportError, match=r"a short text: ONNX Runtime differs from torch by"):
        export.export(encoder, tmp_path / "bundle", name="t", backbone="tiny")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_numbers_fail_the_export(tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="mean")
    with torch.no_grad():
        encoder.backbone.get_parameter("embeddings.LayerNorm.bias")[0] = float("nan")
    with pytest.raises(SourceError, match="a vector of length nan, which has no direction"):
        export.export(encoder, tmp_path / "bundle", name="t", backbone="tiny")


def test_golden_vectors_are_the_encoders_own(tiny_bundle: Path) -> None:
    opened = bundle.load(tiny_bundle)
    pooled = Encoder.load(tiny_bundle).encode(GOLDEN_SENTENCES)
    golden = np.array([g.vector for g in opened.manifest.golden])
    np.testing.assert_allclose(golden, pooled / np.linalg.norm(pooled, axis=1, keepdims=True), atol=1e-6)
    assert golden_cosine(opened) > 0.999999


@pytest.mark.slow
def test_a_bundle_exported_again_keeps_its_history_and_fingerprint(tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="cls")
    history: dict[str, Any] = {"objective": "simcse", "run": {"seed": 3}, "scores": {"stsb_dev": 80.5}}
    first = export.export(encoder, tmp_path / "trained", name="trained", backbone="tiny", **history).manifest
    assert main(["export", str(tmp_path / "trained"), "--out", str(tmp_path / "trained"), "--no-measure"]) == 0
    again = bundle.load(tmp_path / "trained").manifest
    assert (again.name, again.backbone, again.objective, again.run) == ("trained", "tiny", "simcse", {"seed": 3})
    assert (again.scores or {})["stsb_dev"] == 80.5
    assert again.fingerprint == first.fingerprint


@pytest.mark.slow
def test_a_bundle_exported_again_keeps_what_another_transformers_wrote(tiny_backbone: Path, tmp_path: Path) -> None:
    made = export.export(Encoder.load(tiny_backbone, pooling="mean"), tmp_path / "made", name="t", backbone="tiny")
    config = made.folder / "config.json"
    said = json.loads(config.read_text())
    del said["is_decoder"]  # transformers 5 writes this default, and transformers 4 leaves it out.
    config.write_text(json.dumps(said))
    facts = {k: v for k, v in vars(made.manifest).items() if k not in ("files", "fingerprint", "format_version")}
    written = bundle.write_manifest(made.folder, **facts)
    assert written.fingerprint != made.manifest.fingerprint
    assert main(["export", str(made.folder), "--out", str(tmp_path / "again"), "--no-measure"]) == 0
    assert bundle.load(tmp_path / "again").manifest.fingerprint == written.fingerprint
    assert main(["export", str(made.folder), "--out", str(tmp_path / "cls"), "--no-measure", "--pooling", "cls"]) == 0
    cls = bundle.load(tmp_path / "cls").manifest
    assert cls.pooling == "cls" and cls.fingerprint != written.fingerprint


def test_a_bundle_whose_files_now_mean_another_encoder_is_not_exported_again(
    tiny_bundle: Path, other_bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=r"tiny: cosine 0\.\d+ to a golden vector, below 0\.9999"):
        export.export(
            Encoder.load(other_bundle), tmp_path / "out", name="t", backbone="tiny", previous=bundle.load(tiny_bundle)
        )
    assert list(tmp_path.iterdir()) == []


def test_optimum_is_refused_at_once_where_it_does_not_fit(
    tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tiny_backbone), "--out", str(tmp_path / "out"), "--exporter", "optimum"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("isosphere: ") and "`make optimum`" in said.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_is_no_bundle_takes_the_place_of_none(tiny_backbone: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "made"))
    encoder = Encoder.load(tiny_backbone, pooling="mean")
    with pytest.raises(BundleError, match="name"):
        export.export(encoder, folder, name="a\nb", backbone="tiny")
    encoder.attach(Affine.of(torch.zeros(32), torch.full((32, 32), 1e30)))
    with pytest.raises(SourceError, match="a vector of length inf, which has no direction"):
        export.export(encoder, folder, name="a", backbone="tiny")
    assert bundle.load(folder) == bundle.Bundle(folder, bundle.load(tiny_bundle).manifest)


@pytest.mark.parametrize(
    ("matrix", "mean", "message"),
    [
        (torch.zeros(32, 32), torch.zeros(32), "gives 'The quick.*' a vector of length 0.0, which has no direction"),
        (1e-9 * torch.eye(32), torch.full((32,), -1.0), "gives all texts the same vector"),
    ],
)
def test_vectors_that_tell_nothing_apart_are_named(
    tiny_backbone: Path, tmp_path: Path, matrix: torch.Tensor, mean: torch.Tensor, message: str
) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="mean")
    with torch.no_grad():
        for weights in encoder.backbone.parameters():
            weights.mul_(1e-9 if "same" in message else 1)
    encoder.attach(Affine.of(mean, matrix))
    with pytest.raises(SourceError, match=message):
        export.export(encoder, tmp_path / "out", name="a", backbone="tiny")
    assert not (tmp_path / "out").exists()


def test_a_folder_is_called_by_its_name(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".", ".."):
        assert main(["export", str(tiny_backbone), "--out", name]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert said.startswith(f"isosphere: {name}: the folder would be replaced")


@pytest.mark.slow
def test_the_engines_of_this_machine_are_measured_into_the_bundle(
    tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["export", str(tiny_backbone), "--out", str(tmp_path / "plain"), "--no-measure"]) == 0
    plain = bundle.load(tmp_path / "plain")
    assert bundle.ENGINES not in plain.manifest.files
    assert "fastest engine" not in capsys.readouterr().out
    measurements: list[Sequence[Measured]] = []
    measure = measurement.measure

    def measured_again(opened: bundle.Bundle, options: Options) -> Sequence[Measured]:
        measurements.append(measure(opened, options))
        return measurements[-1]

    monkeypatch.setattr(choice, "measure", measured_again)
    monkeypatch.setattr(choice, "recall", lambda *_: [])
    assert main(["export", str(tiny_backbone), "--out", str(tmp_path / "measured")]) == 0
    measured = bundle.load(tmp_path / "measured")
    assert measured.manifest.fingerprint == plain.manifest.fingerprint
    said = capsys.readouterr().out.splitlines()[-1]
    options = Options(threads=cpus.available())
    if len(available(measured, options)) == 1:
        pytest.skip("there is nothing to choose from on this machine")
    assert len(measurements) == 1, "what is printed is what was measured"
    table = json.loads((tmp_path / "measured" / bundle.ENGINES).read_text())
    assert table["host"] == choice.host(options)
    (chosen,) = (row for row in table["measured"] if row["chosen"])
    assert said.startswith("fastest engine on this machine") and f"{chosen['runtime']} {chosen['precision']}" in said


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "models", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_line_inspects_and_verifies(tiny_bundle: Path) -> None:
    inspected = _run("inspect", str(tiny_bundle))
    assert json.loads(inspected.stdout)["dim"] == 32
    verified = _run("verify", str(tiny_bundle))
    assert verified.returncode == 0, verified.stderr
    assert "golden cosine 1.000000" in verified.stdout


def test_the_command_line_answers_bad_input_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["verify", str(tmp_path / "nowhere")],
        ["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")],
        ["export", "./no/such", "--out", str(tmp_path / "out")],
    ):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert said.startswith("isosphere: ")
        assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def _opposite(folder: Path) -> None:
    """Give the first golden vector another direction, and a length at which the product with it is still high."""
    said = json.loads((folder / "manifest.json").read_text())
    first = said["golden"][0]["vector"]
    said["golden"][0]["vector"] = [3 * x + (0.3 if i % 2 else 0) for i, x in enumerate(first)]
    (folder / "manifest.json").write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / bundle.ONNX).write_bytes(b"no graph"), r"model\.onnx: .*Protobuf parsing failed"),
        (lambda folder: (folder / bundle.INT8).write_text("[" * 100_000), r"int8\.json: .*recursion"),
        (_opposite, r"model\.onnx: cosine 0\.\d+ to a golden vector"),
    ],
)
def test_a_bundle_that_a_server_refuses_is_refused_by_verify_in_one_line(
    damage: Callable[[Path], object],
    named: str,
    tiny_bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "b"))
    damage(folder)
    _seal_again(folder)
    assert main(["verify", str(folder)]) == 2
    said = capsys.readouterr().err
    assert re.search(named, said) and said.count("\n") == 1


def _seal_again(folder: Path) -> None:
    said = bundle.read_manifest(folder / bundle.MANIFEST)
    facts = {each.name: getattr(said, each.name) for each in fields(said) if each.name not in ("files", "fingerprint")}
    bundle.write_manifest(folder, **facts)


@pytest.mark.parametrize("length", ["0", "-1", "many"])
def test_a_maximum_length_below_one_is_refused(length: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", "minilm", "--out", str(tmp_path / "out"), "--max-length", length])
    assert ended.value.code == 2 and "--max-length" in capsys.readouterr().err


def test_a_place_that_can_not_be_written_is_named_in_one_line(
    tiny_backbone: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    transformers.logging.set_verbosity_info()  # type: ignore[no-untyped-call]
    transformers.logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    assert main(["export", str(tiny_backbone), "--out", str(tmp_path / "file" / "bundle")]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1, "and no report of transformers before it"
    assert said.startswith(f"isosphere: {tmp_path}/file") and "/file" in said


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    assert main(["export", str(tiny_backbone), "--out", str(tmp_path / "bundle")]) == 1
    assert (
        capsys.readouterr().err == f"isosphere: {tmp_path}/bundle: I/O error: No space left on device (os error 28)\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_differs_is_one_line_of_the_command(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "PARITY", -1.0)
    assert main(["export", str(tiny_backbone), "--out", str(tmp_path / "bundle")]) == 1
    line = capsys.readouterr().err
    assert line.startswith("isosphere: a short text: ONNX Runtime differs from torch") and line.count("\n") == 1
