from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch

from models.__main__ import main
from models.bundle import bundle
from models.bundle.bundle import BundleError
from models.bundle.sources import SourceError
from models.encoder import transform
from models.encoder.encoder import Encoder
from models.encoder.transform import TRANSFORMS, Affine, Flow, Layers, Transform
from models.export.export import export

TEXTS = ["The man plays the guitar.", "a", "", "The river runs to the sea. " * 20]


def random_transform(kind: str, dim: int = 32) -> Transform:
    """Return a transform with weights like those of a fitted one, none of which is zero or one."""
    torch.manual_seed(0)
    dense = {"kind": "dense", "dim": dim, "out": dim * 3 // 8, "bias": True, "activation": "Tanh"}
    made: Transform
    if kind == "flow":
        made = Flow(dim=dim, levels=2, depth=2, hidden=8)
    elif kind == "dense":
        made = Layers(dim=dim, layers=[{"kind": "normalize"}, dense])
    else:
        made = Affine(dim=dim, out=dim * 3 // 8)
    made.load_state_dict({name: 0.3 * torch.randn_like(weights) for name, weights in made.state_dict().items()})
    return made


@pytest.fixture(scope="module", params=TRANSFORMS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made(kind: str, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Path]:
    """Make an encoder with a transform, and its bundle."""
    encoder = Encoder.load(tiny_backbone, pooling="mean")
    encoder.attach(random_transform(kind))
    folder = tmp_path_factory.mktemp("transformed") / kind
    export(encoder, folder, name="t", backbone="tiny")
    return encoder, folder


def embedded(folder: Path, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encoder = Encoder.load(folder)
    ids, mask = encoder.tokenizer.pad(encoder.tokenizer.encode(texts))
    session = ort.InferenceSession(str(folder / bundle.ONNX), providers=["CPUExecutionProvider"])
    unit, norms = session.run(["sentence_embedding", "norm"], {"input_ids": ids, "attention_mask": mask})
    return unit, norms


@pytest.mark.slow
def test_vectors_are_the_transform_of_the_pooled_ones(tiny_backbone: Path, made: tuple[Encoder, Path]) -> None:
    encoder, _ = made
    pooled = torch.from_numpy(Encoder.load(tiny_backbone, pooling="mean").encode(TEXTS))
    assert encoder.transform is not None
    assert encoder.encode(TEXTS).shape == (len(TEXTS), encoder.dim)
    np.testing.assert_allclose(encoder.encode(TEXTS), encoder.transform(pooled).numpy(), atol=1e-5)


def test_a_bundle_loads_back_with_its_transform(made: tuple[Encoder, Path]) -> None:
    encoder, folder = made
    again, manifest = Encoder.load(folder), bundle.load(folder).manifest
    assert again.transform is not None and encoder.transform is not None
    assert manifest.transform == transform.described(again.transform) == transform.described(encoder.transform)
    assert manifest.dim == again.dim == encoder.dim
    np.testing.assert_array_equal(encoder.encode(TEXTS), again.encode(TEXTS))


def test_the_graph_ends_after_the_transform(made: tuple[Encoder, Path]) -> None:
    encoder, folder = made
    unit, norms = embedded(folder, TEXTS)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(unit * norms[:, None], encoder.encode(TEXTS), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_bundle_exported_again_keeps_its_transform_and_fingerprint(
    made: tuple[Encoder, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder, folder = made
    assert main(["export", str(folder), "--out", str(tmp_path / "again"), "--no-measure"]) == 0
    assert encoder.transform is not None
    assert f"{encoder.max_length} tokens, mean pooling, {encoder.transform.kind} transform" in capsys.readouterr().out
    assert bundle.load(tmp_path / "again").manifest.fingerprint == bundle.load(folder).manifest.fingerprint


def test_the_fingerprint_follows_kind_and_weights(tiny_bundle: Path, made: tuple[Encoder, Path]) -> None:
    manifest = bundle.load(made[1]).manifest
    assert manifest.fingerprint != bundle.load(tiny_bundle).manifest.fingerprint
    assert manifest.files[bundle.TRANSFORM] == bundle.sha256(made[1] / bundle.TRANSFORM)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update(transform=None), "must both be present or both be absent"),
        (lambda m: m.update(transform="affine"), "transform must be an object whose kind is a text, or null"),
        (lambda m: m["transform"].update(kind="other"), "fingerprint does not match"),
        (lambda m: m["files"].pop("transform.safetensors"), "must both be present or both be absent"),
    ],
)
def test_a_manifest_and_weights_that_disagree_are_refused(
    made: tuple[Encoder, Path], tmp_path: Path, edit: Callable[[dict[str, object]], object], message: str
) -> None:
    folder = Path(shutil.copytree(made[1], tmp_path / "bundle"))
    content = json.loads((folder / bundle.MANIFEST).read_text())
    edit(content)
    (folder / bundle.MANIFEST).write_text(json.dumps(content))
    with pytest.raises(BundleError, match=message):
        bundle.load(folder)


def test_a_bundle_from_before_transforms_is_one_without(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "old"))
    content = json.loads((folder / bundle.MANIFEST).read_text())
    del content["transform"]
    (folder / bundle.MANIFEST).write_text(json.dumps(content))
    assert bundle.load(folder).manifest == bundle.load(tiny_bundle).manifest
    assert Encoder.load(folder).transform is None


def test_a_transform_is_tied_to_the_pooling_it_was_fitted_on(made: tuple[Encoder, Path]) -> None:
    assert Encoder.load(made[1], pooling="mean", max_length=16).max_length == 16
    with pytest.raises(SourceError, match="fitted to mean pooling, not to cls"):
        Encoder.load(made[1], pooling="cls")


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"kind": "spline"}, "'spline' is not one of affine, flow"),
        ({"kind": "affine", "dim": 32}, "out"),
        ({"kind": "affine", "dim": 32, "out": 31}, r"transform\.safetensors: .*size mismatch"),
        ({"kind": "flow", "dim": 32, "levels": 9, "depth": 1, "hidden": 8}, "halved"),
    ],
)
def test_weights_of_another_kind_or_size_are_an_error(
    tmp_path: Path, description: dict[str, object], message: str
) -> None:
    transform.save(Affine(dim=32, out=16), tmp_path)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        transform.load(tmp_path, description)


def test_a_transform_of_another_width_can_not_be_attached(tiny_backbone: Path) -> None:
    encoder = Encoder.load(tiny_backbone, pooling="mean")
    with pytest.raises(ValueError, match="needs 64 dimensions, but pooled vectors have 32"):
        encoder.attach(random_transform("affine", dim=64))


def test_training_around_a_transform_leaves_it_alone(made: tuple[Encoder, Path]) -> None:
    encoder = Encoder.load(made[1])
    assert encoder.transform is not None
    encoder(*encoder.tensors(encoder.tokenizer.encode(TEXTS))).sum().backward()  # type: ignore[no-untyped-call]
    assert all(weights.grad is None for weights in encoder.transform.parameters())
    assert encoder.backbone.get_parameter("embeddings.word_embeddings.weight").grad is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # sentence-transformers' own
@pytest.mark.parametrize("pooling", ["cls", "first_last_1"])
def test_sentence_transformers_agrees_on_an_affine_transform(tiny_backbone: Path, tmp_path: Path, pooling: str) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = Encoder.load(tiny_backbone, pooling=pooling)
    encoder.attach(random_transform("affine"))
    export(encoder, tmp_path / "bundle", name="t", backbone="tiny")
    theirs = SentenceTransformer(str(tmp_path / "bundle"), device="cpu").encode(TEXTS)
    ours, _ = embedded(tmp_path / "bundle", TEXTS)
    assert theirs.shape == ours.shape == (len(TEXTS), 12)
    assert (ours * theirs).sum(axis=1).min() > 0.9999


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # sentence-transformers' own
def test_sentence_transformers_refuses_what_its_files_can_not_say(
    tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = Encoder.load(tiny_backbone, pooling="mean")
    encoder.attach(random_transform("flow"))
    export(encoder, tmp_path / "bundle", name="t", backbone="tiny")
    for trusting in (False, True):  # Versions before 3.0 trusted all code.
        with pytest.raises((ImportError, OSError, ValueError), match="isosphere"):
            SentenceTransformer(str(tmp_path / "bundle"), device="cpu", trust_remote_code=trusting)
    assert main(["inspect", str(tmp_path / "bundle")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["transform"]["kind"] == "flow"
    assert "sentence-transformers does not support this transform" in said.err
