"""Tests of adapters in the format of `peft`: they are merged as peft merges them, or refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers import AutoModel

from models.__main__ import main
from models.bundle import adapter, bundle, sources
from models.bundle.adapter import AdapterError
from models.bundle.sources import SourceError
from models.encoder.encoder import Encoder, keep_layers
from models.errors import Refused
from models.export.export import GOLDEN_SENTENCES, export, unit_vectors
from models.export.extraction import cosines_between, extract, record
from models.remotes import open_remote, transfer

QUERY = "base_model.model.encoder.layer.0.attention.self.query"


@pytest.fixture(scope="module")
def extracted(tiny_backbone: Path, other_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Extract the adapter of rank 4 from `tiny_backbone` to `other_bundle`."""
    folder = tmp_path_factory.mktemp("adapters") / "other"
    extract(str(other_bundle), folder, base=str(tiny_backbone), rank=4, about="A test.")
    return folder


@pytest.fixture
def copied(extracted: Path, tmp_path: Path) -> Path:
    """Copy `extracted` to be damaged.

    The copy has no manifest, because the manifest's hashes would be the first to differ.
    """
    folder = tmp_path / "copied"
    shutil.copytree(extracted, folder)
    (folder / adapter.MANIFEST).unlink()
    return folder


def _peft(base: Path, folder: Path, encoder: Encoder) -> np.ndarray:
    """Return the vectors that peft computes with the pooling of `encoder`."""
    model = PeftModel.from_pretrained(AutoModel.from_pretrained(base, add_pooling_layer=False), folder).eval()
    with torch.inference_mode():
        pooled = [
            encoder.pooled([model(*ids).last_hidden_state], ids[1]) for ids in map(_ids(encoder), GOLDEN_SENTENCES)
        ]
    return torch.nn.functional.normalize(torch.cat(pooled)).numpy()


def _ids(encoder: Encoder) -> Callable[[str], tuple[torch.Tensor, torch.Tensor]]:
    return lambda text: encoder.tensors(encoder.tokenizer.encode([text]))


@pytest.mark.filterwarnings("ignore")  # peft's own
def test_peft_opens_the_folder_and_gives_the_same_vectors(tiny_backbone: Path, extracted: Path) -> None:
    encoder = Encoder.load(extracted)
    ours = unit_vectors(encoder, GOLDEN_SENTENCES)
    assert (ours * _peft(tiny_backbone, extracted, encoder)).sum(axis=1).min() > 0.9999
    assert (ours * unit_vectors(Encoder.load(tiny_backbone, pooling="mean"), GOLDEN_SENTENCES)).sum(
        axis=1
    ).min() < 0.999


@pytest.mark.filterwarnings("ignore")  # peft's own
def test_float8_halves_the_factors_and_peft_reads_them_as_we_do(
    tiny_backbone: Path, other_bundle: Path, extracted: Path, tmp_path: Path
) -> None:
    command = ["adapter", "extract", str(other_bundle), "--base", str(tiny_backbone), "--rank", "4"]
    assert main([*command, "--dtype", "float8_e4m3fn", "--out", str(tmp_path / "narrow")]) == 0
    wide, narrow = adapter.load(extracted), adapter.load(tmp_path / "narrow")
    base = Encoder.load(tiny_backbone).backbone.state_dict()
    base = {name: weight.numpy() for name, weight in base.items()}
    rounded, changed = narrow.updates(base), wide.updates(base)
    for name in (name for name in changed if name.endswith(".weight")):
        change = changed[name] - base[name]
        assert np.linalg.norm(rounded[name] - changed[name]) < 2**-3 * np.linalg.norm(change)
    for name in wide.tensors:
        assert narrow.tensors[name].nbytes == wide.tensors[name].nbytes // (2 if ".lora_" in name else 1)
    encoder = Encoder.load(narrow.folder)
    ours = unit_vectors(encoder, GOLDEN_SENTENCES)
    assert (ours * _peft(tiny_backbone, narrow.folder, encoder)).sum(axis=1).min() > 0.9999


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # peft's own
def test_an_adapter_that_leaves_layers_out_is_opened_by_peft_and_exported(
    tiny_backbone: Path, other_bundle: Path, tmp_path: Path
) -> None:
    student = Encoder.load(other_bundle)
    keep_layers(student.backbone, [1])
    export(student, tmp_path / "student", name="student", backbone="tiny")
    command = ["adapter", "extract", str(tmp_path / "student"), "--base", str(tiny_backbone), "--rank", "32"]
    assert main([*command, "--layers", "1", "--out", str(tmp_path / "last")]) == 0
    assert main([*command, "--layers", "0", "--out", str(tmp_path / "first")]) == 0
    last, merged = adapter.load(tmp_path / "last"), Encoder.load(tmp_path / "last")
    assert last.layers == [1] and merged.backbone.config.num_hidden_layers == 1
    ours = unit_vectors(merged, GOLDEN_SENTENCES)
    assert (ours * _peft(tiny_backbone, tmp_path / "last", merged)).sum(axis=1).min() > 0.9999
    assert (
        cosines_between(merged, student)[1] > cosines_between(Encoder.load(tiny_backbone, pooling="mean"), student)[1]
    )
    assert main(["export", str(tmp_path / "last"), "--out", str(tmp_path / "b"), "--no-measure"]) == 0
    assert last.manifest is not None
    assert bundle.load(tmp_path / "b").manifest.fingerprint == last.manifest.fingerprint
    assert "| layers | 1 of" in (tmp_path / "last" / bundle.CARD).read_text(encoding="utf-8")
    of_another_layer = replace(last, config={**last.config, adapter.LAYERS: [[0, 1]]})
    assert of_another_layer.sha256 != last.sha256
    with pytest.raises(Refused, match="must be ascending numbers from 0 to 1"):
        extract(str(other_bundle), tmp_path / "c", base=str(tiny_backbone), rank=1, layers=[2])


@pytest.mark.filterwarnings("ignore")  # peft's own
@pytest.mark.parametrize(
    "options",
    [
        {"lora_alpha": 3},
        {"use_rslora": True},
        {"bias": "all"},
        {"bias": "lora_only"},
        {"target_modules": ["query", "word_embeddings"]},
        {"rank_pattern": {"query": 5}, "alpha_pattern": {"layer.1.attention.self.query": 7}},
    ],
    ids=str,
)
def test_what_peft_saved_is_merged_as_peft_computes_it(
    tiny_backbone: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Merge an adapter of another program. It has no manifest of ours, so it uses the pooling of the base."""
    torch.manual_seed(0)
    base = AutoModel.from_pretrained(tiny_backbone, add_pooling_layer=False)
    model = get_peft_model(base, LoraConfig(**{"r": 3, "target_modules": ["query", "dense"], **options}))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight), alpha=0.1)
    model.peft_config["default"].base_model_name_or_path = str(tiny_backbone)
    model.save_pretrained(str(tmp_path))
    encoder = Encoder.load(tmp_path)
    assert encoder.pooling == "cls"
    theirs = _peft(tiny_backbone, tmp_path, encoder)
    np.testing.assert_allclose(unit_vectors(encoder, GOLDEN_SENTENCES), theirs, atol=1e-5)


def test_the_manifest_says_what_the_adapter_is(tiny_backbone: Path, other_bundle: Path, extracted: Path) -> None:
    said, tuned = adapter.load(extracted).manifest, bundle.load(other_bundle).manifest
    assert said is not None and said.adapter is not None
    assert said.adapter["base_sha256"] == bundle.sha256(tiny_backbone / "model.safetensors")
    assert (said.pooling, said.max_length, said.dim) == (tuned.pooling, tuned.max_length, tuned.dim)
    assert said.scores is None  # Scores of the tuned encoder are not copied.
    assert "A test." in (extracted / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_higher_rank_is_nearer_and_the_full_one_is_the_tuned_encoder(
    tiny_backbone: Path, other_bundle: Path, tmp_path: Path
) -> None:
    tuned = Encoder.load(other_bundle)
    least = []
    for rank in (1, 8, 32):
        made = extract(str(other_bundle), tmp_path / str(rank), base=str(tiny_backbone), rank=rank)
        assert cosines_between(Encoder.load(tmp_path / str(rank)), tuned)[1] == pytest.approx(made.least_cosine)
        least.append(made.least_cosine)
    assert least == sorted(least) and least[0] < least[2]
    merged, whole = (each.backbone.state_dict() for each in (Encoder.load(tmp_path / "32"), tuned))
    query = QUERY.removeprefix("base_model.model.")
    torch.testing.assert_close(merged[f"{query}.weight"], whole[f"{query}.weight"], atol=1e-3, rtol=0)
    torch.testing.assert_close(merged[f"{query}.bias"], whole[f"{query}.bias"], atol=0, rtol=0)


def test_a_full_disk_is_one_line_with_the_name_of_the_folder(
    tiny_backbone: Path,
    other_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    out, command = tmp_path / "full", ["adapter", "extract", str(other_bundle), "--base", str(tiny_backbone)]
    monkeypatch.setattr(adapter, "save_file", full)
    assert main([*command, "--rank", "4", "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"isosphere: {out}: I/O error: No space left on device (os error 28)\n"


@pytest.mark.slow
def test_a_bundle_of_it_has_the_fingerprint_that_its_manifest_foretells(extracted: Path, tmp_path: Path) -> None:
    assert main(["export", str(extracted), "--out", str(tmp_path / "b"), "--no-measure"]) == 0
    made, said = bundle.load(tmp_path / "b").manifest, adapter.load(extracted).manifest
    assert said is not None
    assert (made.fingerprint, made.adapter) == (said.fingerprint, said.adapter)
    assert main(["export", str(tmp_path / "b"), "--out", str(tmp_path / "again"), "--no-measure"]) == 0
    assert bundle.load(tmp_path / "again").manifest.fingerprint == said.fingerprint


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_the_merged_weight_is_the_sum_of_all_products(rank: int, wide: int, high: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(rank, wide)).astype("f4"), draw.normal(size=(high, rank)).astype("f4")
    weight = draw.normal(size=(high, wide)).astype("f4")
    config = {"r": rank, "lora_alpha": 2 * rank}
    tensors = {"base_model.model.x.lora_A.weight": a, "base_model.model.x.lora_B.weight": b}
    (merged,) = adapter.Adapter(Path(), config, tensors, None).updates({"x.weight": weight}).values()
    assert merged.dtype == np.float32 and merged.flags.c_contiguous
    slow = [[w + 2 * sum(float(b[i, k]) * float(a[k, j]) for k in range(rank)) for j, w in enumerate(row)]
            for i, row in enumerate(weight.tolist())]  # fmt: skip
    np.testing.assert_allclose(merged, slow, rtol=1e-6, atol=1e-6)


WRONG_LAYERS: tuple[Any, ...] = (
    [],
    "0,2",
    [[0]],
    [[0, "1"]],
    [[1, 2], [0, 1]],
    [[0, 2], [1, 3]],
    [[1, 1]],
    [[-1, 1]],
    [[0, 10**9]],
)


def _config(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / adapter.CONFIG
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return change


def _tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / adapter.WEIGHTS)
        change(tensors)
        save_file(tensors, folder / adapter.WEIGHTS)

    return rewrite


def _cut(folder: Path) -> None:
    content = (folder / adapter.WEIGHTS).read_bytes()
    (folder / adapter.WEIGHTS).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (_config(use_dora=True), "use_dora"),
        (_config(modules_to_save=["pooler"]), "modules_to_save"),
        (_config(some_feature_of_tomorrow={"on": True}), "some_feature_of_tomorrow"),
        (_config(peft_type="IA3"), "peft_type"),
        (_config(init_lora_weights="pissa"), "init_lora_weights"),
        (_config(r=0), "r: "),
        (_config(r="4"), "r: "),
        (_config(lora_alpha=None), "lora_alpha"),
        (_config(rank_pattern={"(": 3}), "rank_pattern"),
        (_config(r=5), "does not match the rank 5"),
        (_config(bias="some"), "bias"),
        *((_config(layer_replication=wrong), "layer_replication") for wrong in WRONG_LAYERS),
        (_config(bias="none"), "bias"),  # The tensors of these layers exist all the same.
        (_cut, "adapter_model.safetensors: truncated"),
        (lambda folder: (folder / adapter.WEIGHTS).unlink(), "adapter_model.safetensors: missing"),
        (lambda folder: (folder / adapter.CONFIG).write_text("{"), "not JSON"),
        (_tensors(lambda tensors: tensors.clear()), "no tensor"),
        (_tensors(lambda tensors: tensors.pop(f"{QUERY}.lora_B.weight")), "query.lora_B.weight: missing"),
        (_tensors(lambda tensors: tensors[f"{QUERY}.lora_A.weight"].fill(np.nan)), "not finite"),
        (_tensors(lambda tensors: tensors.update({"base_model.model.x.weight": np.ones(2, "f4")})), "x.weight"),
        (
            _tensors(lambda tensors: tensors.update({f"{QUERY}.lora_A.weight": np.ones((4, 32), "i1")})),
            "lora_A.weight: has the type I8",
        ),
    ],
)
def test_what_can_t_be_merged_is_refused_by_name(copied: Path, damage: Callable[[Path], None], names: str) -> None:
    damage(copied)
    with pytest.raises(AdapterError) as refusal:
        adapter.load(copied)
    assert names in str(refusal.value) and "\n" not in str(refusal.value) and str(copied) in str(refusal.value)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"encoder.layer.9.x": (32, 32)}, "encoder.layer.9.x.weight, which the base does not have"),
        ({"encoder.layer.0.attention.self.query": (32, 16)}, "query.weight is 32x16, but the base has 32x32"),
    ],
)
def test_another_shape_or_depth_than_the_base_s_is_named(
    copied: Path, tensors: dict[str, tuple[int, int]], says: str
) -> None:
    ((module, (high, wide)),) = tensors.items()
    pair = {"lora_A": np.ones((4, wide), "f4"), "lora_B": np.ones((high, 4), "f4")}
    save_file({f"base_model.model.{module}.{side}.weight": x for side, x in pair.items()}, copied / adapter.WEIGHTS)
    with pytest.raises(AdapterError, match=says):
        Encoder.load(copied)


def test_a_base_with_other_weights_is_refused(
    extracted: Path, tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, base = tmp_path / "moved", tmp_path / "base"
    shutil.copytree(extracted, folder)
    shutil.copytree(tiny_backbone, base)
    weights = load_file(base / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, base / "model.safetensors", {"format": "pt"})
    said = (folder / adapter.MANIFEST).read_text(encoding="utf-8").replace(str(tiny_backbone), str(base))
    (folder / adapter.MANIFEST).write_text(said, encoding="utf-8")
    assert main(["export", str(folder), "--out", str(tmp_path / "out"), "--no-measure"]) == 2
    assert "SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_the_manifest_s_is_refused(extracted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "altered"
    shutil.copytree(extracted, folder)
    (folder / adapter.CONFIG).write_text((folder / adapter.CONFIG).read_text() + " ")
    with pytest.raises(AdapterError, match=r"adapter_config\.json: changed"):
        adapter.load(folder)


@pytest.mark.parametrize("rank", [0, -1, 33])
def test_a_rank_that_no_weight_has(tiny_backbone: Path, other_bundle: Path, tmp_path: Path, rank: int) -> None:
    with pytest.raises(AdapterError, match=f"rank: {rank} does not fit: .* 1 to 32"):
        extract(str(other_bundle), tmp_path / "a", base=str(tiny_backbone), rank=rank)
    assert not (tmp_path / "a").exists()


def test_an_encoder_that_was_not_tuned_from_the_base(tiny_backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="and its base minilm has 6"):
        extract(str(tiny_backbone), tmp_path / "a", base="minilm", rank=4)


def test_only_an_adapter_is_replaced(tiny_backbone: Path, other_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    with pytest.raises(AdapterError, match="not an adapter, so it is not replaced"):
        extract(str(other_bundle), tmp_path / "mine", base=str(tiny_backbone), rank=1)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "words"


def test_an_adapter_to_an_adapter_is_refused(copied: Path, extracted: Path) -> None:
    _config(base_model_name_or_path=str(extracted))(copied)
    with pytest.raises(SourceError, match="whole weights are needed"):
        Encoder.load(copied)


def test_there_and_back_by_publish_and_pull(extracted: Path, tmp_path: Path, copied: Path) -> None:
    place = open_remote(f"file://{tmp_path}/remote")
    opened = transfer.opened(extracted)
    assert transfer.publish(opened, place) == 5
    assert transfer.publish(opened, place) == 0
    back, fetched = transfer.pull(place, tmp_path / "back")
    assert fetched == 5 and back.manifest == opened.manifest
    assert transfer.pull(place, tmp_path / "back")[1] == 0
    with pytest.raises(Refused, match=r"no adapter\.json"):
        transfer.publish(transfer.opened(copied), place)


def test_inspect_and_verify_take_an_adapter(extracted: Path, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(extracted)]) == 0
    assert json.loads(capsys.readouterr().out)["adapter"]["rank"] == 4
    assert main(["verify", str(extracted)]) == 0
    assert "4 files verified" in capsys.readouterr().out
    assert main(["inspect", str(copied)]) == main(["verify", str(copied)]) == 2
    assert "adapter.json" in capsys.readouterr().err


def test_a_deep_configuration_is_told_in_one_line(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / adapter.CONFIG).write_text("[" * 100_000)
    assert main(["verify", str(copied)]) == 2
    assert "adapter_config.json: not JSON" in capsys.readouterr().err


def test_a_configuration_that_is_too_large_is_not_read(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_JSON_BYTES", 10)
    with pytest.raises(Refused, match=r"adapter_config\.json: has \d+ bytes"):
        adapter.load(copied)


def test_an_unknown_name_lists_those_that_are_there() -> None:
    with pytest.raises(SourceError) as refusal:
        sources.resolve("minilm+nothing")
    assert all(name in str(refusal.value) for name in sources.shipped())


def test_bfloat16_is_read(copied: Path) -> None:
    import safetensors.torch

    before = adapter.load(copied)
    tensors = safetensors.torch.load_file(copied / adapter.WEIGHTS)
    safetensors.torch.save_file({name: x.bfloat16() for name, x in tensors.items()}, copied / adapter.WEIGHTS)
    after = adapter.load(copied)
    kept = {name: x for name, x in after.tensors.items() if name.startswith(f"{QUERY}.lora")}
    zero = {f"{QUERY.removeprefix(adapter.PREFIX)}.weight": np.zeros((32, 32), "f4")}
    (merged,) = adapter.Adapter(copied, after.config, kept, None).updates(zero).values()
    assert merged.dtype == np.float32
    np.testing.assert_allclose(merged, _product(before), atol=0.02 * np.abs(_product(before)).max())


def _product(opened: adapter.Adapter) -> Any:
    a, b = (opened.tensors[f"{QUERY}.lora_{side}.weight"].astype("f4") for side in "AB")
    return np.matmul(b, a)


def test_a_folder_with_other_files_beside_the_adapter_s_is_left_alone(
    tiny_backbone: Path, other_bundle: Path, copied: Path
) -> None:
    (copied / "optimizer.pt").write_bytes(b"moments")
    with pytest.raises(AdapterError, match=r"optimizer\.pt: not a file of the adapter"):
        extract(str(other_bundle), copied, base=str(tiny_backbone), rank=1)
    assert (copied / "optimizer.pt").read_bytes() == b"moments"


def test_scores_are_recorded_in_manifest_and_card(extracted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scored"
    shutil.copytree(extracted, folder)
    before = adapter.load(folder).manifest
    record(folder, {"STS mean": 51.234})
    record(folder, {"scifact nDCG@10": 60.0})
    after = adapter.load(folder).manifest
    assert before is not None and after is not None
    assert after.scores == {"STS mean": 51.23, "scifact nDCG@10": 60.0}
    assert (after.fingerprint, after.golden, after.run) == (before.fingerprint, before.golden, before.run)
    assert "51.23" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("cached", [True, False])
def test_an_adapter_in_the_hub_s_cache(
    extracted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    folder = tmp_path / "hub" / "models--org--mine"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    if cached:
        shutil.copytree(extracted, folder / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    if cached:
        np.testing.assert_array_equal(
            Encoder.load("org/mine").encode(GOLDEN_SENTENCES[:3]), Encoder.load(extracted).encode(GOLDEN_SENTENCES[:3])
        )
        assert sources.manifest_of("org/mine") == adapter.load(extracted).manifest
    else:
        with pytest.raises(SourceError, match="org/mine"):
            sources.resolve("org/mine")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # peft's own
@pytest.mark.parametrize("name", sources.shipped())
def test_peft_opens_the_adapters_of_the_repository(name: str) -> None:
    encoder = Encoder.load(name)
    theirs = _peft(sources.minilm(), sources.resolve(name), encoder)
    assert (unit_vectors(encoder, GOLDEN_SENTENCES) * theirs).sum(axis=1).min() > 0.9999
