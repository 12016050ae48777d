"""Tests of bundles that are assembled without torch: they equal torch's own export."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest

from models.__main__ import main
from models.bundle import adapter, bundle, sources
from models.bundle.bundle import MANIFEST, ONNX, Bundle
from models.bundle.sources import TEMPLATE
from models.cli import commands
from models.encoder.encoder import Encoder, keep_layers
from models.errors import Failed
from models.export import assembly
from models.export.assembly import assemble
from models.export.export import check_parity, export
from models.runtimes.graph import golden_cosine
from tests.models.template import write_template

NAMES = ["minilm", *sources.shipped()]
PARITY = 1e-5
SURROUNDINGS = {
    "config.json": "transformers_version",
    "config_sentence_transformers.json": "__version__",
    "tokenizer_config.json": "local_files_only",
}
"""Files that name versions of the environment that wrote them, with the keys of these versions."""


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return assemble(NAMES[-1], tmp_path_factory.mktemp("assembled") / "bundle", name="bundle")


@pytest.mark.slow
def test_the_template_is_what_torch_exports(tmp_path: Path) -> None:
    """Check the template against a new export. After an upgrade of torch, `write_template` renews it."""
    torchs = export(Encoder.load("minilm"), tmp_path / "torchs", name="minilm", backbone="minilm")
    write_template(torchs, tmp_path / "again")
    paths = sorted(str(file.relative_to(TEMPLATE)) for file in TEMPLATE.rglob("*") if file.is_file())
    assert paths == sorted(
        str(file.relative_to(tmp_path / "again")) for file in (tmp_path / "again").rglob("*") if file.is_file()
    )
    for path in paths:
        kept, again = (folder / path for folder in (TEMPLATE, tmp_path / "again"))
        if path == MANIFEST:
            continue
        if path in SURROUNDINGS:
            said = [{**json.loads(file.read_text()), SURROUNDINGS[path]: None} for file in (kept, again)]
            assert said[0] == said[1], path
        elif path == bundle.INT8:
            limits = [json.loads(file.read_text())["limit"] for file in (kept, again)]
            assert limits[0] == pytest.approx(limits[1], abs=1e-6)
        elif path != ONNX:
            assert kept.read_bytes() == again.read_bytes(), path
    graphs = [onnx.load(folder / ONNX) for folder in (TEMPLATE, tmp_path / "again")]
    assert graphs[0].graph == graphs[1].graph
    made = assemble("minilm", tmp_path / "ours", name="minilm")
    assert made.manifest.fingerprint == torchs.manifest.fingerprint
    for path in ("model.safetensors", "tokenizer.json"):
        assert made.manifest.files[path] == torchs.manifest.files[path]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in NAMES[:2] else pytest.mark.nightly) for name in NAMES],
)
def test_the_graph_computes_what_torch_computes(name: str, tmp_path: Path) -> None:
    made = assemble(name, tmp_path / "made", name="made")
    assert check_parity(Encoder.load(name), made.onnx) <= PARITY


@pytest.mark.slow
@pytest.mark.parametrize("kept", [(0, 2, 5), (1,), (0, 1, 2, 3, 4, 5)])
def test_a_shorter_graph_computes_what_torch_computes_with_these_layers(kept: tuple[int, ...], tmp_path: Path) -> None:
    encoder, graph = Encoder.load("minilm"), onnx.load(TEMPLATE / ONNX)
    keep_layers(encoder.backbone, kept)
    weights = {name: weight.numpy() for name, weight in Encoder.load("minilm").backbone.state_dict().items()}
    assembly.shorten(graph.graph, len(kept))
    assembly.fill(graph, assembly.keep_layers(weights, kept))
    onnx.save(graph, tmp_path / "model.onnx")
    assert check_parity(encoder, tmp_path / "model.onnx") <= PARITY
    assert len(graph.graph.initializer) == 5 + 16 * len(kept)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == NAMES[-1] else pytest.mark.nightly) for name in NAMES],
)
def test_torch_exports_the_same_encoder(name: str, tmp_path: Path) -> None:
    made = assemble(name, tmp_path / "made", name="made")
    encoder = Encoder.load(name)
    torchs = export(encoder, tmp_path / "torchs", name="made", backbone="minilm", adapter=made.manifest.adapter)
    assert made.manifest.fingerprint == torchs.manifest.fingerprint
    assert golden_cosine(Bundle(torchs.folder, made.manifest)) > 0.99999


@pytest.mark.slow
def test_it_is_the_same_to_the_byte_every_time_and_no_torch_is_loaded(assembled: Bundle, tmp_path: Path) -> None:
    code = (
        "import sys; from models.__main__ import main; "
        f"assert not main(['export', {NAMES[-1]!r}, '--out', {str(tmp_path / 'bundle')!r}, '--no-measure']); "
        "assert not {'torch', 'transformers'} & sys.modules.keys(), 'torch was loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    assert bundle.load(tmp_path / "bundle").manifest == assembled.manifest


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # sentence-transformers' own
def test_sentence_transformers_opens_it(assembled: Bundle) -> None:
    from sentence_transformers import SentenceTransformer

    golden = assembled.manifest.golden
    theirs = SentenceTransformer(str(assembled.folder), device="cpu").encode([one.text for one in golden])
    assert (theirs * np.array([one.vector for one in golden])).sum(axis=1).min() > 0.9999


@pytest.mark.parametrize(
    "option", [["--pooling", "cls"], ["--max-length", "16"], ["--prompt", "query=q"], ["--fp16"]], ids="".join
)
def test_other_options_are_torch_s_to_carry_out(
    option: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_torch = Mock()
    monkeypatch.setattr(commands, "_export_by_torch", by_torch)
    assert main(["export", "minilm", *option, "--out", str(tmp_path / "b"), "--no-measure"]) == 0
    by_torch.assert_called_once()


def test_weights_that_do_not_fit_the_graph_are_named() -> None:
    graph = onnx.load(TEMPLATE / ONNX)
    with pytest.raises(Failed, match=r"no embeddings\.word_embeddings\.weight"):
        assembly.fill(graph, {})
    with pytest.raises(Failed, match=r"word_embeddings\.weight is \(2, 2\), expected \(30522, 384\)"):
        assembly.fill(graph, {"embeddings.word_embeddings.weight": np.zeros((2, 2), "f4")})


@pytest.mark.slow
def test_wrong_golden_vectors_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = assembly.fill
    other = "embeddings.LayerNorm.weight"
    monkeypatch.setattr(assembly, "fill", lambda graph, weights: fill(graph, {**weights, other: -weights[other]}))
    with pytest.raises(Failed, match="to a golden vector"):
        assemble("minilm", tmp_path / "b", name="b")
    assert not (tmp_path / "b").exists()


def test_what_the_repository_keeps_is_small() -> None:
    assert sources.shipped()[0] == "minilm+default" and len(sources.shipped()) >= 4
    sizes = {name: sum(file.stat().st_size for file in sources.resolve(name).iterdir()) for name in sources.shipped()}
    assert all(size <= (2e6 if name.endswith(("+distilled", "+fast")) else 1e6) for name, size in sizes.items()), sizes
    assert sum(sizes.values()) <= 10e6
    assert (TEMPLATE / ONNX).stat().st_size <= 300_000


@pytest.mark.parametrize("name", sources.shipped())
def test_an_adapter_of_the_repository_says_how_it_was_made(name: str) -> None:
    folder = sources.resolve(name)
    said = adapter.load(folder).manifest
    assert said is not None and said.adapter is not None and said.run is not None
    assert said.name == folder.name and said.adapter["base_sha256"] == sources.MINILM_SHA256
    assert "STS mean" in (said.scores or {})
    assert not [text for text in (folder / adapter.MANIFEST).read_text().split('"') if text.startswith("/")]
    assert "license: apache-2.0" in (folder / bundle.CARD).read_text(encoding="utf-8")
