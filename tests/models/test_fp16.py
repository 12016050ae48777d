"""Tests of the float16 graph: same interface, fused attention, half the size, and accurate for every family."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto

from models.__main__ import main
from models.bundle import bundle
from models.bundle.bundle import Bundle
from models.encoder.encoder import Encoder
from models.encoder.transform import Affine
from models.export import export
from models.export.export import ExportError, check_parity, write_fp16, write_onnx
from models.runtimes import Pair, available
from models.runtimes.base import Options
from models.runtimes.onnxruntime import CPU, Session
from tests.conftest import soon
from tests.models.test_families import A_FEW_POOLINGS, FAMILIES, TEXTS, Family

FUSED = {"Bert", "Roberta", "XLMRoberta", "DistilBert", "Electra"}
"""Families whose attention ONNX Runtime's optimiser can fuse."""


@pytest.fixture(
    scope="module",
    # One family of `FUSED` and one other family run in every test run.
    params=soon(FAMILIES, "Bert", "MPNet", called=lambda family: family.name),
)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Family, Path]:
    folder = tmp_path_factory.mktemp("family")
    request.param.write(folder)
    return request.param, folder


def operators(file: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(file).graph.node)


def cosines_to_torch(encoder: Encoder, file: Path) -> NDArray[np.float32]:
    """Return the cosine of each text's vector to torch's vector, with all texts in one padded batch."""
    expected = encoder.encode(TEXTS)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    got = Session(file, [CPU], threads=1).run(*encoder.tokenizer.pad(encoder.tokenizer.encode(TEXTS)))
    cosines: NDArray[np.float32] = (got.vectors * expected).sum(axis=1)
    return cosines


@pytest.mark.slow
def test_every_family_keeps_its_vectors_fused_and_halved(family: tuple[Family, Path], tmp_path: Path) -> None:
    kind, folder = family
    encoder = Encoder.load(folder, pooling="mean")
    graph, fused, half = (tmp_path / f"{name}.onnx" for name in ("graph", "fused", "half"))
    write_onnx(encoder, graph)
    export.fuse(graph, fused, encoder.backbone.config)
    assert check_parity(encoder, fused) <= export.PARITY
    assert operators(fused)["Attention"] == (2 if kind.name in FUSED else 0)
    write_fp16(encoder, graph, half)
    assert operators(half)["Attention"] == operators(fused)["Attention"]
    assert cosines_to_torch(encoder, half).min() >= 0.9999


@pytest.mark.slow
@pytest.mark.parametrize("pooling", A_FEW_POOLINGS)
def test_pooling_and_what_follows_it_stay_in_float32(pooling: str, tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny_backbone, pooling=pooling)
    matrix = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    encoder.attach(Affine.of(torch.ones(32), matrix))
    graph, half = tmp_path / "graph.onnx", tmp_path / "half.onnx"
    write_onnx(encoder, graph)
    write_fp16(encoder, graph, half)
    assert cosines_to_torch(encoder, half).min() >= 0.9999
    model = onnx.load(half)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    kept = [tensor for name, tensor in weights.items() if name.startswith("encoder.transform.")]
    assert kept and all(tensor.data_type == TensorProto.FLOAT for tensor in kept)
    sizes: Counter[int] = Counter()
    for tensor in weights.values():
        sizes[tensor.data_type] += int(np.prod(tensor.dims, dtype=int))
    assert sizes[TensorProto.FLOAT16] > 20 * sizes[TensorProto.FLOAT], "the backbone's are halved"
    assert {one.name: one.type.tensor_type.elem_type for one in model.graph.output} == {
        "sentence_embedding": TensorProto.FLOAT,
        "norm": TensorProto.FLOAT,
        "token_embeddings": TensorProto.FLOAT,
    }


@pytest.mark.slow
def test_vectors_too_long_for_float16_are_normalised_all_the_same(tiny_backbone: Path, tmp_path: Path) -> None:
    """Normalise a pooled vector whose squared norm exceeds float16: 300² x 32 is 44 times the largest number."""
    encoder = Encoder.load(tiny_backbone, pooling="mean")
    with torch.no_grad():
        for name in ("weight", "bias"):
            encoder.backbone.get_parameter(f"encoder.layer.1.output.LayerNorm.{name}").mul_(300)
    graph, half = tmp_path / "graph.onnx", tmp_path / "half.onnx"
    write_onnx(encoder, graph)
    write_fp16(encoder, graph, half)
    ids, mask = encoder.tokenizer.pad(encoder.tokenizer.encode(TEXTS))
    got = Session(half, [CPU], threads=1).run(ids, mask)
    np.testing.assert_allclose(got.norms, np.linalg.norm(encoder.encode(TEXTS), axis=1), rtol=1e-2)
    assert got.norms.max() > 256


def test_fusing_that_changes_vectors_is_not_used(
    opened: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encoder, half = Encoder.load(opened.folder), tmp_path / "half.onnx"

    def fuse_wrongly(graph: Path, file: Path, config: Any) -> None:
        model = onnx.load(graph)
        model.graph.initializer.remove(
            bias := next(one for one in model.graph.initializer if one.name.endswith("embeddings.LayerNorm.bias"))
        )
        changed = onnx.numpy_helper.to_array(bias) + np.eye(32, dtype=np.float32)[0]
        model.graph.initializer.append(onnx.numpy_helper.from_array(changed, bias.name))
        onnx.save(model, file)

    monkeypatch.setattr(export, "fuse", fuse_wrongly)
    with caplog.at_level(logging.WARNING):
        write_fp16(encoder, opened.onnx, half)
    assert "made without fused operators" in caplog.text
    assert operators(half)["Attention"] == 0
    assert cosines_to_torch(encoder, half).min() >= 0.9999


@pytest.mark.slow
def test_a_half_that_is_not_near_enough_fails_the_export_and_leaves_nothing(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="mean")
    with torch.no_grad():  # These attention scores are too close for float16.
        encoder.backbone.get_parameter("embeddings.LayerNorm.weight").mul_(3e5)
    with pytest.raises(ExportError, match=r"the float16 graph's cosine to torch's vectors is .*export without --fp16"):
        export.export(encoder, tmp_path / "out", name="t", backbone="tiny", fp16_graph=True)
    assert list(tmp_path.iterdir()) == []


def test_the_bundle_offers_it_to_every_machine_and_remains_the_same_encoder(
    opened: Bundle, half_bundle: Bundle
) -> None:
    assert bundle.FP16_ONNX in half_bundle.manifest.files
    assert half_bundle.manifest.fingerprint == opened.manifest.fingerprint
    assert Pair("onnxruntime", "fp16") in available(half_bundle, Options("cpu", 1))
    assert Pair("onnxruntime", "fp16") not in available(opened, Options("cpu", 1))


@pytest.mark.slow
def test_the_command_writes_it_where_it_is_asked_for(tiny_backbone: Path, tmp_path: Path) -> None:
    assert main(["export", str(tiny_backbone), "--out", str(tmp_path / "b"), "--fp16", "--no-measure"]) == 0
    assert list(bundle.load(tmp_path / "b").graphs) == ["fp32", "fp16"]
