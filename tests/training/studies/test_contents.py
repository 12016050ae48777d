"""Tests of the digests of inputs, which depend on contents and not on paths."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from models.bundle.bundle import BundleError
from models.encoder.encoder import Encoder
from models.export.export import export
from training.studies.trial import encoder_digest


@pytest.mark.slow
def test_a_bundle_is_known_by_all_that_decides_its_vectors(tiny_backbone: Path, tmp_path: Path) -> None:
    for pooling in ("mean", "cls", "first_last", "first_last_1", "last2"):
        export(Encoder.load(tiny_backbone, pooling=pooling), tmp_path / pooling, name=pooling, backbone="tiny")
    assert len({encoder_digest(folder) for folder in tmp_path.iterdir()}) == 5


@pytest.mark.slow
def test_neither_its_card_nor_its_name_is_among_that(tiny_backbone: Path, tmp_path: Path) -> None:
    for name, scores in (("one", {"STS12": 50.0}), ("other", None)):
        export(Encoder.load(tiny_backbone, pooling="mean"), tmp_path / name, name=name, backbone="tiny", scores=scores)
    assert encoder_digest(tmp_path / "one") == encoder_digest(tmp_path / "other")


def test_a_bundle_that_is_damaged_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "tiny")
    (tmp_path / "tiny" / "model.safetensors").write_bytes(b"others")
    with pytest.raises(BundleError, match=r"tiny/model\.safetensors: changed \(its SHA-256 differs"):
        encoder_digest(tmp_path / "tiny")


def test_a_folder_of_weights_is_known_by_its_files(tiny_backbone: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        shutil.copytree(tiny_backbone, tmp_path / name)
    (tmp_path / "other" / "README.md").write_text("a card")
    assert encoder_digest(tmp_path / "one") == encoder_digest(tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    assert encoder_digest(tmp_path / "one") != encoder_digest(tmp_path / "other")


@pytest.mark.parametrize(
    "file",
    [
        *("config.json", "model.safetensors", "tokenizer.json", "special_tokens_map.json", "added_tokens.json"),
        *("vocab.txt", "merges.txt", "spiece.model", "modules.json", "1_Pooling/config.json"),
    ],
)
def test_every_file_that_decides_vectors_counts(file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    digests = set()
    for content in (b"one", b"two"):
        (tmp_path / file).write_bytes(content)
        digests.add(encoder_digest(tmp_path))
    assert len(digests) == 2
