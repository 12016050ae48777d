from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.bundle import bundle
from models.bundle.bundle import BundleError
from models.bundle.prompts import DOCUMENT, prompt_for


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def _edit_manifest(folder: Path, edit: Callable[[dict[str, object]], object]) -> None:
    file = folder / bundle.MANIFEST
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def test_the_layout_is_the_contract(tiny_bundle: Path) -> None:
    opened = bundle.load(tiny_bundle)
    present = {p.relative_to(tiny_bundle).as_posix() for p in tiny_bundle.rglob("*")}
    assert present == {
        "manifest.json", "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "model.safetensors", "modules.json", "1_Pooling", "1_Pooling/config.json", "2_Normalize",
        "config_sentence_transformers.json", "sentence_bert_config.json", "onnx", "onnx/model.onnx", "int8.json",
        "README.md",
    }  # fmt: skip
    assert opened.manifest.dim == 32
    assert len(opened.manifest.golden) == 10
    assert set(opened.manifest.files) == {p for p in present if "." in p} - {"manifest.json"}


@pytest.mark.parametrize("path", ["onnx/model.onnx", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"])
def test_a_missing_file_is_named(copy: Path, path: str) -> None:
    (copy / path).unlink()
    with pytest.raises(BundleError, match=f"{path}: missing"):
        bundle.load(copy)


def test_a_foreign_file_is_named(copy: Path) -> None:
    (copy / "onnx" / "model.onnx.data").write_bytes(b"x")
    with pytest.raises(BundleError, match=r"onnx/model.onnx.data: not in the manifest"):
        bundle.load(copy)


def test_a_link_is_refused(copy: Path) -> None:
    target = copy.parent / "elsewhere"
    (copy / "tokenizer.json").rename(target)
    (copy / "tokenizer.json").symlink_to(target)
    with pytest.raises(BundleError, match=r"tokenizer.json: is a link"):
        bundle.load(copy)


def test_what_a_link_led_to_is_read_wherever_it_leads_later(copy: Path, other_bundle: Path) -> None:
    link = copy.parent / "link"
    link.symlink_to(copy.name)
    opened = bundle.load(link)
    assert opened.folder == copy
    link.unlink()
    link.symlink_to(other_bundle)
    assert bundle.sha256(opened.onnx) == opened.manifest.files["onnx/model.onnx"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_changed_byte_anywhere_is_refused_by_name(copy: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(bundle.load(copy).manifest.files)))
    file = copy / path
    original = file.read_bytes()
    at = data.draw(st.integers(0, len(original) - 1))
    file.write_bytes(original[:at] + bytes([original[at] ^ 1]) + original[at + 1 :])
    with pytest.raises(BundleError, match=f"{path}: changed"):
        bundle.load(copy)
    file.write_bytes(original)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update(format_version=99), "format version 1"),
        (lambda m: m.pop("pooling"), "lacks pooling"),
        (lambda m: m.update(surprise=1), "unknown fields 'surprise'"),
        (lambda m: m.update(pooling="cls"), "fingerprint does not match"),
        (lambda m: m.update(max_length=63), "fingerprint does not match"),
        (lambda m: m.update(prompts={"query": "q: "}, fingerprint="0" * 64), "fingerprint does not match"),
        (lambda m: m.update(dim="32"), "dim must be a positive integer"),
        (lambda m: m.update(max_length=True), "max_length must be a positive integer"),
        (lambda m: m.update(dim=33), "golden vectors must be present and have 33"),
        (lambda m: m.update(golden=[]), "golden vectors must be present"),
        (lambda m: m.update(golden=[{"text": "x"}]), "golden must be a list"),
        (lambda m: m.update(golden=[{"text": "x", "vector": ["1"] * 32}]), "golden must be a list"),
        (lambda m: m.update(name=7), r"manifest\.json: name must be text$"),
        (lambda m: m.update(objective=[]), "objective must be text or null"),
        (lambda m: m.update(backbone=None), "backbone must be text"),
        (lambda m: m.update(pooling=[1]), "pooling must be text"),
        (lambda m: m.update(fingerprint=0), "fingerprint must be text"),
        (lambda m: m.update(prompts=None), "prompts must be an object"),
        (lambda m: m.update(prompts={"query": 1}), "prompts must be an object"),
        (lambda m: m.update(run=[1]), "run must be an object or null"),
        (lambda m: m.update(scores={"STS12": "b"}), "scores must be an object of names and finite numbers"),
        (lambda m: m.update(scores={"STS12": float("nan")}), "scores must be an object"),
        (lambda m: m.update(scores={"STS12": 10**400}), "scores must be an object"),
        (lambda m: m.update(transform={"no": "kind"}), "transform must be an object whose kind"),
        (lambda m: m["files"].update({"config.json": 0}), "files must be an object"),
        (lambda m: m["files"].update({"config.json/evil": "00"}), "'config.json' can't be a file and the folder of"),
        (
            lambda m: m["files"].update({"../outside": "00"}),
            "'../outside' must be a plain name of a file inside the folder",
        ),
        (lambda m: m["files"].update({"manifest.json": "00"}), r"lists manifest\.json"),
        (lambda m: m.update(files=["config.json"]), "files must be an object"),
        (lambda m: m["files"].pop("onnx/model.onnx"), r"does not list onnx/model\.onnx"),
    ],
)
def test_a_wrong_manifest_says_what_is_wrong(
    copy: Path, edit: Callable[[dict[str, object]], object], message: str
) -> None:
    _edit_manifest(copy, edit)
    with pytest.raises(BundleError, match=message):
        bundle.load(copy)


@pytest.mark.parametrize("control", ["\x1b[31m", "\n", "\x7f", "\x9b2J", "\ud800"])
@pytest.mark.parametrize("where", ["files", "name", "field"])
def test_a_manifest_commands_no_terminal(copy: Path, control: str, where: str) -> None:
    strange = f"a{control}b"
    edits: dict[str, Callable[[dict[str, Any]], object]] = {
        "files": lambda m: m["files"].update({strange: "00"}),
        "name": lambda m: m.update(name=strange),
        "field": lambda m: m.update({strange: 1}),
    }
    _edit_manifest(copy, edits[where])
    with pytest.raises(BundleError) as caught:
        bundle.load(copy)
    assert control not in str(caught.value) and repr(strange) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"1" * 5000])
def test_a_manifest_that_is_no_json_object_is_an_error_naming_it(copy: Path, content: bytes) -> None:
    (copy / bundle.MANIFEST).write_bytes(content)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        bundle.load(copy)


@pytest.mark.parametrize("name", ["manifest.json", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_of_json_that_would_fill_the_memory_is_not_read(copy: Path, name: str) -> None:
    with (copy / name).open("r+b") as file:
        file.truncate((64 << 20) + 1)  # A sparse file needs no space on the disk.
    with pytest.raises(BundleError, match=rf"{name}: has 67108865 bytes, more than the maximum of 67108864 for a JSON"):
        bundle.load(copy)


def test_no_folder_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for nothing in ("nowhere", "file"):
        with pytest.raises(BundleError, match="is this the folder of a bundle"):
            bundle.load(tmp_path / nothing)


@pytest.mark.slow
def test_the_fingerprint_ignores_names_and_follows_what_decides_the_vectors(
    tiny_backbone: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    from models.encoder.encoder import Encoder
    from models.export.export import export

    def made(name: str, **how: object) -> str:
        encoder = Encoder.load(tiny_backbone, **how)  # type: ignore[arg-type]
        return export(encoder, tmp_path / name, name=name, backbone=name).manifest.fingerprint

    mean = bundle.load(tiny_bundle).manifest.fingerprint
    assert made("renamed", pooling="mean") == mean
    assert made("cls", pooling="cls") != mean
    assert made("shorter", pooling="mean", max_length=32) != mean


def test_prompts_are_part_of_the_fingerprint(copy: Path) -> None:
    """Check that prompts change the fingerprint, because they change a corpus's vectors. Empty prompts do not."""
    bare = bundle.load(copy).manifest.fingerprint
    assert _rewritten(copy, prompts={"query": ""}).manifest.fingerprint == bare
    prompted = {
        _rewritten(copy, prompts=prompts).manifest.fingerprint
        for prompts in ({"query": "q: "}, {"query": "q:"}, {"document": "q: "}, {"query": "q: ", "document": "d: "})
    }
    assert len(prompted | {bare}) == 5
    beside = _rewritten(copy, prompts={"passage": "d: ", "document": ""}).manifest
    assert beside.fingerprint == _rewritten(copy, prompts={"passage": "d: "}).manifest.fingerprint
    assert prompt_for(beside.prompts, DOCUMENT) == "d: ", "an empty one hides none"


def test_a_bundle_of_before_prompts_were_part_of_its_fingerprint_has_todays(copy: Path) -> None:
    bare = bundle.load(copy).manifest.fingerprint
    prompted = _rewritten(copy, prompts={"query": "q: "}).manifest.fingerprint
    manifest = copy / bundle.MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"fingerprint": bare}))
    assert bundle.load(copy).manifest.fingerprint == prompted != bare
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"fingerprint": prompted, "prompts": {}}))
    with pytest.raises(BundleError, match="fingerprint does not match"):
        bundle.load(copy)


def test_importing_the_bundle_loads_no_torch() -> None:
    script = "import sys, models.bundle, models.bundle.tokenizer, models.python_docs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def _rewritten(folder: Path, prompts: dict[str, str] | None = None, **files: object) -> bundle.Bundle:
    """Return the bundle with other prompts or files, and with the hashes of these files."""
    for name, content in files.items():
        (folder / name.replace("_json", ".json")).write_text(json.dumps(content))
    before = json.loads((folder / bundle.MANIFEST).read_text())
    kept = {key: before[key] for key in before.keys() - {"files", "fingerprint", "golden", "format_version"}}
    kept |= {} if prompts is None else {"prompts": prompts}
    bundle.write_manifest(folder, **kept, golden=[bundle.Golden(**one) for one in before["golden"]])
    return bundle.load(folder)


def test_the_int8_range_holds_the_calibration_and_changes_no_fingerprint(copy: Path) -> None:
    opened = bundle.load(copy)
    assert opened.int8_limit is not None
    assert 0 < opened.int8_limit <= 1
    other = _rewritten(copy, int8_json={"limit": 0.5})
    assert other.int8_limit == 0.5
    assert other.manifest.fingerprint == opened.manifest.fingerprint
    (copy / "int8.json").unlink()
    assert _rewritten(copy).int8_limit is None


def test_a_bundle_whose_int8_range_is_none_is_refused(copy: Path) -> None:
    opened = _rewritten(copy, int8_json={"limit": 0})
    with pytest.raises(BundleError, match=r"int8\.json: limit must be"):
        _ = opened.int8_limit


@pytest.mark.parametrize(
    ("config", "says"), [("[]", "not an object"), ("{", "not JSON"), ("[" * 100_000, "not JSON"), ("\xff", "not JSON")]
)
def test_a_configuration_that_is_none_is_named_though_its_hash_is_right(copy: Path, config: str, says: str) -> None:
    opened = bundle.load(copy)
    (copy / "config.json").write_bytes(config.encode("latin-1"))
    _edit_manifest(copy, lambda said: said["files"].update({"config.json": bundle.sha256(copy / "config.json")}))  # type: ignore[attr-defined]
    for read in (lambda: bundle.load(copy), lambda: opened.matryoshka):
        with pytest.raises(BundleError, match=rf"config\.json: {says}"):
            read()


@pytest.mark.parametrize("rows", [None, "9"])
def test_a_number_of_rows_that_is_none_is_ignored(rows: object, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    assert _rewritten(copy, config_json={**config, "vocab_size": rows}).tokenizer.encode(["a"])


def test_an_encoder_says_whether_it_was_trained_to_be_cut(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    assert 16 not in bundle.load(copy).matryoshka
    assert 16 in _rewritten(copy, config_json={**config, "is_matryoshka": True}).matryoshka
    listed = _rewritten(copy, config_json={**config, "is_matryoshka": True, "matryoshka_dimensions": [8, 32]})
    assert (8 in listed.matryoshka, 16 in listed.matryoshka) == (True, False)


@pytest.mark.parametrize("widths", [256, "256,128", [[8]], [0], [10_000]])
def test_widths_that_are_none(tiny_bundle: Path, tmp_path: Path, widths: object) -> None:
    copy = Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    with pytest.raises(BundleError, match=r"config\.json: matryoshka_dimensions must be a list of widths"):
        _ = _rewritten(copy, config_json={**config, "matryoshka_dimensions": widths}).matryoshka
