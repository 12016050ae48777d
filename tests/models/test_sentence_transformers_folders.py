"""Tests of folders that versions of sentence-transformers have written, with its own vectors as the oracle."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from models.bundle.sources import SourceError, resolve
from models.encoder.encoder import Encoder
from models.export.export import export
from tests.models.fake_hub import FakeHub
from tests.models.test_transform import embedded

TEXTS = ["The man plays the guitar.", "a", "", "The river runs to the sea and the sun is hot in the morning."]
Write = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore")  # sentence-transformers' own


@pytest.fixture(scope="module")
def write(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Let sentence-transformers save an encoder of the tiny backbone, a pooling and further modules."""

    def written(pooling: str | Sequence[str], *modules: Any, width: int = 32, **options: Any) -> Path:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        folder = tmp_path_factory.mktemp("theirs")
        torch.manual_seed(1)
        own = [Transformer(str(tiny_backbone)), Pooling(width, pooling)]
        SentenceTransformer(modules=[*own, *modules], device="cpu", **options).save(str(folder))
        return folder

    return written


@pytest.fixture(scope="module")
def like_distiluse(write: Write) -> Path:
    return write("mean", dense(32, 20))


@pytest.fixture
def folder(like_distiluse: Path, tmp_path: Path) -> Path:
    """Copy a folder with mean pooling and a dense layer, to be changed."""
    return Path(shutil.copytree(like_distiluse, tmp_path / "theirs"))


def dense(dim: int, out: int, **options: Any) -> Any:
    from sentence_transformers.sentence_transformer.modules import Dense

    torch.manual_seed(dim + out)
    return Dense(dim, out, **options)


def normalize() -> Any:
    from sentence_transformers.sentence_transformer.modules import Normalize

    return Normalize()


def theirs(folder: Path) -> NDArray[np.float32]:
    from sentence_transformers import SentenceTransformer

    vectors: NDArray[np.float32] = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    return vectors


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / lengths)


def move(folder: Path, number: int, place: str) -> None:
    """Move a module to another folder."""
    modules = json.loads((folder / "modules.json").read_text())
    before, modules[number]["path"] = folder / modules[number]["path"], place
    (folder / place).mkdir()
    inside = [one for one in before.iterdir() if one.is_file() and one.name not in NOT_MOVED]
    for file in inside:
        shutil.move(file, folder / place / file.name)
    (folder / "modules.json").write_text(json.dumps(modules))


NOT_MOVED = ("modules.json", "config_sentence_transformers.json", "README.md")


def pickled(folder: Path) -> None:
    """Store weights in torch's pickle format."""
    for file in folder.rglob("model.safetensors"):
        torch.save(load_file(file), file.with_name("pytorch_model.bin"))
        file.unlink()


@pytest.mark.parametrize("pooling", ["weightedmean", "mean_sqrt_len_tokens", ("lasttoken", "max")])
def test_poolings_and_dense_layers_give_their_vectors(write: Write, pooling: str | Sequence[str]) -> None:
    width = 32 * (1 if isinstance(pooling, str) else len(pooling))
    folder = write(pooling, dense(width, 24), dense(24, 40, bias=False, activation_function=torch.nn.Identity()))
    np.testing.assert_allclose(Encoder.load(folder).encode(TEXTS), theirs(folder), atol=1e-5)


def test_an_encoder_like_labse_and_its_bundle_give_their_vectors(write: Write, tmp_path: Path) -> None:
    folder = write("cls", normalize(), dense(32, 20), normalize(), truncate_dim=12)
    vectors = unit(theirs(folder))
    assert vectors.shape == (len(TEXTS), 12)
    encoder = Encoder.load(folder)
    np.testing.assert_allclose(unit(encoder.encode(TEXTS)), vectors, atol=1e-5)
    export(encoder, tmp_path / "bundle", name="t", backbone="tiny")
    for ours in (embedded(tmp_path / "bundle", TEXTS)[0], Encoder.load(tmp_path / "bundle").encode(TEXTS)):
        np.testing.assert_allclose(unit(ours), vectors, atol=1e-4)
    np.testing.assert_allclose(unit(theirs(tmp_path / "bundle")), vectors, atol=1e-5)


def test_modules_are_where_the_list_says_also_pickled(folder: Path) -> None:
    vectors = theirs(folder)
    move(folder, 0, "0_Transformer")
    move(folder, 1, "2_Pooling")
    (folder / "1_Pooling").mkdir(exist_ok=True)  # An earlier save leaves this file.
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    (folder / "2_Dense").rename(folder / "3_Dense")
    (folder / "modules.json").write_text((folder / "modules.json").read_text().replace("2_Dense", "3_Dense"))
    (folder / "0_Transformer" / "sentence_bert_config.json").unlink()
    (folder / "0_Transformer" / "sentence_roberta_config.json").write_text('{"max_seq_length": 20}')
    pickled(folder)
    assert resolve(str(folder)) == folder
    encoder = Encoder.load(folder)
    assert (encoder.pooling, encoder.max_length) == ("mean", 20)
    np.testing.assert_allclose(encoder.encode(TEXTS[:3]), vectors[:3], atol=1e-5)


class Malicious:
    """Object that runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("place", ["", "2_Dense"])
def test_code_in_pickled_weights_is_never_run(folder: Path, place: str, tmp_path: Path) -> None:
    (folder / place / "model.safetensors").unlink()
    torch.save({"x": Malicious(tmp_path / "ran")}, folder / place / "pytorch_model.bin")
    with pytest.raises(SourceError, match=f"^{folder}"):
        Encoder.load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["model.safetensors", "2_Dense/model.safetensors", "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_named_as_one(folder: Path, file: str) -> None:
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 90868376\n")
    with pytest.raises(SourceError, match=f"{file}: a Git LFS pointer, not the file itself"):
        Encoder.load(folder)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"activation_function": "torch.nn.modules.activation.Softmax"}, "activation_function torch.nn.*Softmax is no"),
        ({"activation_function": "os.Tanh"}, r"activation_function os\.Tanh is not one of"),
        ({"module_input_name": "token_embeddings"}, "module_input_name 'token_embeddings' is not supported"),
        ({"use_residual": True}, "use_residual True is not supported"),
        ({"in_features": 64}, "in_features is 64, but the module before has 32 dimensions"),
        ({"out_features": 21}, "linear.weight"),
    ],
)
def test_a_dense_layer_that_is_not_supported_is_refused_by_name(folder: Path, said: Any, named: str) -> None:
    config = folder / "2_Dense" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | said))
    with pytest.raises(SourceError, match=named):
        Encoder.load(folder)
    with pytest.raises(SourceError):
        Encoder.load(folder, pooling="cls")


def test_modules_come_from_the_hub_at_a_revision(
    folder: Path, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    move(folder, 0, "0_Transformer")
    repository = hub.make("org/like-distiluse", {})
    for branch in ("safe", "pickled"):
        repository.commit(branch, {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*.*")})
        pickled(folder)
    expected = Encoder.load(folder).encode(TEXTS)
    for branch in ("safe", "pickled"):
        np.testing.assert_array_equal(Encoder.load(f"org/like-distiluse@{branch}").encode(TEXTS), expected)
    with pytest.raises(SourceError, match="org/like-distiluse@gone"):
        Encoder.load("org/like-distiluse@gone")


@pytest.mark.parametrize(("widths", "kept"), [([8, 16, 32], [8, 16]), ([32], []), ("all", "all"), (None, None)])
def test_a_truncation_leaves_the_matryoshka_widths_that_fit(write: Write, widths: Any, kept: Any) -> None:
    folder = write("mean", truncate_dim=16)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"matryoshka_dimensions": widths}))
    encoder = Encoder.load(folder)
    assert (encoder.dim, encoder.backbone.config.matryoshka_dimensions) == (16, kept)
