from __future__ import annotations

from pathlib import Path

import pytest

from models.bundle import bundle
from training.checkpoints.publish import teacher_identity


def test_a_teacher_is_known_by_its_fingerprint(tiny_bundle: Path) -> None:
    manifest = bundle.load(tiny_bundle).manifest
    said = teacher_identity(str(tiny_bundle))
    assert (said["name"], said["fingerprint"]) == (manifest.name, manifest.fingerprint)


def test_one_that_is_gone_keeps_no_run_from_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gone = str(tmp_path / "gone")
    assert teacher_identity(gone) == {"name": gone}
    assert gone in caplog.text


def test_neither_does_a_damaged_adapter(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"damaged")
    assert teacher_identity(str(tmp_path)) == {"name": str(tmp_path)}
