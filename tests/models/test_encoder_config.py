"""Tests of the settings in an encoder's folder."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from models.bundle.sources import SourceError
from models.encoder.config import read_config
from models.encoder.encoder import Encoder


@pytest.fixture
def described(tiny_backbone: Path, tmp_path: Path) -> Path:
    """Copy the tiny backbone with mean pooling, in the format of older versions of sentence-transformers."""
    shutil.copytree(tiny_backbone, tmp_path, dirs_exist_ok=True)
    describe(tmp_path, "sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling")
    pool(tmp_path, pooling_mode_cls_token=False, pooling_mode_mean_tokens=True, pooling_mode_max_tokens=False)
    return tmp_path


def describe(folder: Path, *types: str) -> None:
    names = [kind.rpartition(".")[2] for kind in types]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": kind}
        for i, (name, kind) in enumerate(zip(names, types, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def pool(folder: Path, **modes: object) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))


NEW = (
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
)


def test_folders_of_old_and_new_sentence_transformers_say_their_pooling(described: Path) -> None:
    assert Encoder.load(described).pooling == "mean"
    describe(described, *NEW, "sentence_transformers.base.modules.normalize.Normalize")
    pool(described, pooling_mode="mean", include_prompt=True)
    assert Encoder.load(described).pooling == "mean"


@pytest.mark.parametrize(
    ("types", "named"),
    [
        ([*NEW, "sentence_transformers.sentence_transformer.modules.LayerNorm"], r"LayerNorm \(2_LayerNorm\)"),
        (["sentence_transformers.models.WordEmbeddings", NEW[1]], r"WordEmbeddings \(\.\)"),
        ([NEW[0], "sentence_transformers.models.WeightedLayerPooling", NEW[1]], r"WeightedLayerPooling \(1_"),
        ([NEW[0], "sentence_transformers.models.Dense", NEW[1]], r"Dense \(1_Dense\)"),
        ([*NEW, "sentence_transformers.base.modules.Router"], r"Router \(2_Router\)"),
        (["custom_st.Transformer", NEW[1]], r"custom_st\.Transformer needs code from its folder"),
    ],
)
def test_a_module_that_is_not_supported_is_refused_by_name(described: Path, types: list[str], named: str) -> None:
    describe(described, *types)
    with pytest.raises(SourceError, match=rf"modules\.json: the module {named}"):
        Encoder.load(described)


def test_a_folder_without_pooling_is_refused(described: Path) -> None:
    describe(described, NEW[0])
    with pytest.raises(SourceError, match=r"modules\.json: lists no Pooling"):
        Encoder.load(described)
    describe(described, *NEW)
    shutil.rmtree(described / "1_Pooling")
    with pytest.raises(SourceError, match=r"1_Pooling/config\.json: missing, but modules\.json names"):
        Encoder.load(described)


@pytest.mark.parametrize(
    "modules",
    [
        '{"0": "Transformer"}',
        '[{"type": "Pooling"}]',
        '[{"type": "sentence_transformers.models.Pooling", "path": "../x"}]',
        '["Pooling"]',
        "[1]",
        "5",
        "null",
    ],
)
def test_modules_that_are_none_are_told_by_their_file(described: Path, modules: str) -> None:
    (described / "modules.json").write_text(modules)
    with pytest.raises(SourceError, match=r"modules\.json: not a list of modules"):
        Encoder.load(described)


FILES = ["1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_object_is_named(described: Path, name: str) -> None:
    (described / name).write_text("[1]")
    with pytest.raises(SourceError, match=rf"{re.escape(name)}: not an object"):
        Encoder.load(described)


@pytest.mark.parametrize("name", ["modules.json", *FILES])
def test_a_file_that_is_no_json_is_named(described: Path, name: str) -> None:
    (described / name).write_bytes(b'{"a": \xff')
    with pytest.raises(SourceError, match=rf"{re.escape(name)}: not JSON"):
        Encoder.load(described)


@pytest.mark.parametrize(
    ("name", "said", "named"),
    [
        ("sentence_bert_config.json", {"max_seq_length": "16"}, "max_seq_length must be a whole number above 0"),
        ("sentence_bert_config.json", {"max_seq_length": 16.0}, "max_seq_length must be a whole number above 0"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length must be a whole number above 0"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task 'fill-mask' is not supp"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 8}}}, "processing_kwargs "),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim must be a whole number above 0"),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts must be an object of names and texts"),
        ("config_sentence_transformers.json", {"prompts": {"query": None}}, "prompts must be an object"),
    ],
)
def test_a_setting_of_another_type_is_named(described: Path, name: str, said: dict[str, object], named: str) -> None:
    (described / name).write_text(json.dumps(said))
    with pytest.raises(SourceError, match=f"{name}: {named}"):
        Encoder.load(described)


@pytest.mark.parametrize(("said", "expected"), [(1000, 1000), (10**30, None), (None, None)])
def test_the_length_is_the_tokenizers_if_a_newer_version_wrote_it_there(
    described: Path, said: int | None, expected: int | None
) -> None:
    (described / "tokenizer_config.json").write_text(json.dumps({"model_max_length": said}))
    assert read_config(described).get("max_length") == expected
    (described / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    assert read_config(described)["max_length"] == 20


def test_prompts_that_pooling_would_have_to_pass_over_are_refused(described: Path) -> None:
    """Refuse these prompts, because sentence-transformers leaves their tokens out of the mean."""
    pool(described, pooling_mode_mean_tokens=True, include_prompt=False)
    assert Encoder.load(described).prompts == {}, "without prompts there is nothing to pass over"
    (described / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "query: "}}))
    given: list[dict[str, str]] = [{}, {"query": "", "document": "passage: "}]
    for prompts in given:
        with pytest.raises(SourceError, match="its Pooling has include_prompt = false"):
            Encoder.load(described, prompts=prompts)
    assert Encoder.load(described, prompts={"query": ""}).prompts == {"query": ""}


def test_a_prompt_before_every_text_is_told_to_be_left_out(described: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (described / "config_sentence_transformers.json").write_text(json.dumps(said))
    assert Encoder.load(described).prompts == {"query": "query: "}
    (told,) = (record.getMessage() for record in caplog.records if record.name == "models.encoder.config")
    assert "default_prompt_name 'query' is ignored; to use it, serve with --default-prompt-name" in told


@pytest.mark.parametrize(
    ("modes", "pooling"),
    [
        ({"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}, "cls+max"),
        ({"pooling_mode": ["max", "cls"]}, "max+cls"),
        ({"pooling_mode_mean_tokens": False}, "mean"),
        ({}, "mean"),
    ],
)
def test_poolings_are_joined_in_their_order(described: Path, modes: dict[str, object], pooling: str) -> None:
    pool(described, **modes)
    assert Encoder.load(described).pooling == pooling


@pytest.mark.parametrize(
    "modes", [{"pooling_mode": "multihead"}, {"pooling_mode": []}, {"pooling_mode": 1}, {"pooling_mode_new": True}]
)
def test_poolings_that_are_unknown_are_refused(described: Path, modes: dict[str, object]) -> None:
    pool(described, **modes)
    with pytest.raises(SourceError, match=r"1_Pooling/config\.json: pooling must be of cls, max, mean"):
        Encoder.load(described)


@pytest.mark.parametrize(
    "said",
    [
        {"pooling": "mean"},
        {"pooling": "mean", "max_length": "16", "prompts": {}},
        {"pooling": "average", "max_length": 16, "prompts": {}},
    ],
)
def test_somebody_elses_manifest_is_named(described: Path, said: dict[str, object]) -> None:
    (described / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(SourceError, match=r"manifest\.json: not a bundle's manifest"):
        Encoder.load(described)
