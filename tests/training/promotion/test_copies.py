"""Tests of copies: a copy equals the checked bundle, or does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.bundle import bundle
from models.bundle.bundle import BundleError
from training.promotion.place import copy


def test_what_is_added_is_listed_and_decides_nothing(artifacts: Path) -> None:
    source = bundle.load(artifacts / "tiny")
    made = copy(source, artifacts / "copy", dropped=["1_Pooling/config.json"], added={bundle.REPORT: b"{}"})
    assert set(made.manifest.files) == {*source.manifest.files, bundle.REPORT} - {"1_Pooling/config.json"}
    assert (made.folder / bundle.REPORT).read_bytes() == b"{}"
    assert made.manifest.fingerprint == source.manifest.fingerprint
    again = copy(made, artifacts / "again", added={bundle.REPORT: b"[]"})
    assert (again.folder / bundle.REPORT).read_bytes() == b"[]"
    assert (made.folder / bundle.REPORT).read_bytes() == b"{}", "the first copy's report is no link to the second's"


@pytest.mark.parametrize(("path", "says"), [(bundle.ONNX, "changed"), (bundle.TOKENIZER, "changed"), ("", "removed")])
def test_a_source_that_changes_meanwhile_is_not_copied(artifacts: Path, path: str, says: str) -> None:
    source = bundle.load(artifacts / "tiny")
    if path:
        with (source.folder / path).open("ab") as file:
            file.write(b" ")
    else:
        source.folder.rename(artifacts / "elsewhere")
    with pytest.raises(BundleError, match=f"{path or 'tiny'}.*{says} during the promotion"):
        copy(source, artifacts / "copy", added={})
    assert not (artifacts / "copy").exists()
    assert not [found for found in artifacts.iterdir() if found.name.startswith(".")]
