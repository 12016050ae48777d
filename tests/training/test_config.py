from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.sources import SourceError
from models.cli.fields import check_value, field_types, parse
from models.encoder.pooling import POOLINGS
from training.config import ConfigError, RunConfig, from_preset
from training.objectives import OBJECTIVES

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
positive = st.floats(1e-9, 1e9)
configs = st.builds(
    lambda objective, preset, changes: from_preset(objective, preset=preset).override(changes),
    st.just("simcse"),
    st.sampled_from([*OBJECTIVES["simcse"].presets, "minilm+no-head"]),
    st.fixed_dictionaries(
        {},
        optional={
            "backbone": text,
            "corpus": st.lists(text).map(tuple),
            "eval_data": st.none() | text,
            "seed": st.integers(0, 2**62),
            "max_steps": st.none() | st.integers(1, 10**9),
            "learning_rate": positive,
            "pooling": st.sampled_from(sorted(POOLINGS)),
            "precision": st.sampled_from(["auto", "fp32", "bf16"]),
            "temperature": positive,
            "head": st.booleans(),
        },
    ),
)


@given(configs)
def test_json_round_trip(config: RunConfig) -> None:
    assert RunConfig.from_json(config.to_json()) == config


@given(configs)
def test_a_config_does_not_differ_from_itself(config: RunConfig) -> None:
    assert config.differences(config) == []


def test_a_path_written_in_another_way_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {"backbone": "mine", "corpus": ("c.txt", "d.gz"), "eval_data": "data", "out": "artifacts/d"}
    config = from_preset("simcse").override(paths)
    same = {
        "backbone": "./mine",
        "corpus": ("./c.txt", f"{tmp_path}/d.gz"),
        "eval_data": "x/../data",
        "out": "./artifacts/d/",
    }
    assert config.differences(config.override(same)) == []
    assert config.differences(config.override({"corpus": ("d.gz", "c.txt")})) == [
        "corpus (('c.txt', 'd.gz'), ('d.gz', 'c.txt'))"
    ]
    assert config.differences(config.override({"eval_data": None})) == ["eval_data (data, None)"]


@pytest.mark.parametrize(("backbone", "preset"), [
    ("minilm", "minilm"),
    ("bert-base-uncased", "bert-base-uncased"),
    ("google-bert/bert-large-uncased", "bert-large-uncased"),
    ("/somewhere/of/mine", "bert-base-uncased"),
    ("sentence-transformers/bert-large-nli-cls-token", "bert-large-uncased"),
    ("FacebookAI/roberta-large-mnli", "roberta-large"),
    ("bert-largest", "bert-large-uncased"),
    ("my-bert-large", "bert-large-uncased"),
    ("princeton-nlp/unsup-simcse-bert-large-uncased", "bert-large-uncased"),
    ("princeton-nlp/unsup-simcse-roberta-large", "roberta-large"),
    ("albert-large-v2", "bert-base-uncased"),
])  # fmt: skip
def test_the_preset_follows_the_backbone(backbone: str, preset: str) -> None:
    assert from_preset("simcse", backbone=backbone).preset == preset


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_of_another_folder_the_preset_pools_as_the_folder_says(
    objective: str, tiny_backbone: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    presets = OBJECTIVES[objective].presets
    silent = from_preset(objective, backbone=str(tiny_backbone)).preset
    assert silent == ("bert-base-uncased" if "bert-base-uncased" in presets else next(iter(presets)))
    assert from_preset(objective, backbone=str(tiny_bundle)).preset == "minilm"
    (tmp_path / "1_Pooling").mkdir()
    for mode, preset in [("cls", silent), ("mean", "minilm")]:
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
        assert from_preset(objective, backbone=str(tmp_path)).preset == preset


def test_a_folders_pooling_is_left_to_a_name_and_to_the_preset_that_is_asked_for(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    named = tmp_path / "roberta-base"
    named.symlink_to(tiny_bundle)
    assert from_preset("simcse", backbone=str(named)).preset == "roberta-base"
    assert from_preset("simcse", backbone=str(tiny_bundle), preset="bert-base-uncased").pooling == "cls"


def test_a_folder_that_says_nonsense_is_refused_by_file(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[1]")
    with pytest.raises(SourceError, match=r"manifest\.json: not an object"):
        from_preset("simcse", backbone=str(tmp_path))


def test_what_an_earlier_version_lacks_is_left_out_at_its_earlier_value_and_read_without() -> None:
    """Check that the digest of a run that an earlier version described stays the same."""
    config = from_preset("imsimcse")
    described = json.loads(config.to_json())
    assert "dev_tasks" not in described and "contrast_weight" not in described["params"]
    assert RunConfig.from_json(json.dumps(described)) == config
    changed = config.override({"dev_tasks": "stsb+sickr", "contrast_weight": 0.5})
    assert RunConfig.from_json(changed.to_json()) == changed != config


def test_presets_and_ablations() -> None:
    config = from_preset("simcse", preset="roberta-base+no-head")
    assert (config.batch_size, config.learning_rate, config.params.head) == (512, 1e-5, False)
    assert config.seed == 42 and config.max_length == 32 and config.clip_norm == 1.0 and config.weight_decay == 0


def test_settings_are_typed() -> None:
    config = from_preset("simcse")
    settings = ["batch_size=8", "learning_rate=1e-4", "head=false", "max_steps=none", "corpus=a,b", "precision=fp32"]
    assert config.parse(settings) == {
        "batch_size": 8,
        "learning_rate": 1e-4,
        "head": False,
        "max_steps": None,
        "corpus": ("a", "b"),
        "precision": "fp32",
    }
    changed = config.override(config.parse(settings))
    assert changed.params.head is False and changed.batch_size == 8
    assert changed.differences(config)[0] == "batch_size (8, 64)"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("nonsense", "nonsense: expected key=value"),
        ("batch=3", "'batch' is none of adapter_rank, "),
        ("objective=x", "'objective' is none of"),
        ("batch_size=three", "expected a whole number, got 'three'"),
        ("batch_size=1.5", "expected a whole number"),
        ("max_steps=99999999999999999999", "max_steps=9+: expected a whole number of at most 63 bits, got one of 67"),
        ("learning_rate=nan", "expected a number"),
        ("head=maybe", "expected true or false"),
        ("max_steps=x", "expected a whole number"),
        ("precision=fp64", "expected one of auto, fp32, fp16, bf16, got 'fp64'"),
    ],
)
def test_a_bad_setting_says_what_is_expected(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_preset("simcse").parse([setting])


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_refused_by_its_name(objective: str, value: float) -> None:
    config = from_preset(objective)
    known = {**field_types(RunConfig), **field_types(type(config.params))}
    for name in (name for name, kind in known.items() if kind in (float, float | None)):
        with pytest.raises(ConfigError, match=f"^{name}.* {value} "):
            config.override({name: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size: 0 is not above 0"),
        ({"max_steps": -1}, "max_steps: -1"),
        ({"augmentation_rate": 0.3}, "augmentation_rate: 0.3 needs an augmentation: set one, too"),
        ({"seed": -1}, "seed: -1 is below 0"),
        ({"seed": 2**63}, "seed: 9223372036854775808 has more than 63 bits"),
        ({"max_length": 2}, "max_length: 2 leaves no room"),
        ({"pooling": "average"}, "pooling 'average' is not one of cls"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"objective": "other"}, "objective 'other' is none of simcse"),
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_preset("simcse").override(changes)


@pytest.mark.parametrize(
    ("preset", "message"),
    [("bert", "preset of simcse: 'bert' is none of bert-base"), ("minilm+x", "ablation of simcse: 'x' is none of")],
)
def test_unknown_presets_are_refused(preset: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_preset("simcse", preset=preset)


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ConfigError, match="objective 'dclr2' is none of"):
        from_preset("dclr2")


@pytest.mark.parametrize(
    "change",
    [{"seed": "x"}, {"seed": None}, {"odd": 1}, {"params": {}}, {"params": 3}, {"objective": "x"}, {"corpus": "a"}],
)
def test_broken_json_is_refused(change: dict[str, Any]) -> None:
    values = json.loads(from_preset("simcse").to_json())
    with pytest.raises(ConfigError):
        RunConfig.from_json(json.dumps(values | change))
    with pytest.raises(ConfigError):
        RunConfig.from_json("[]")
    with pytest.raises(ConfigError):
        RunConfig.from_json("{")


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ({"layers": 6}, "not the configuration of a run: objective and params missing"),
        ({"objective": "simcse"}, "not the configuration of a run: params missing"),
        ({"objective": "nope", "params": {}}, "objective 'nope' is none of"),
    ],
)
def test_what_a_configuration_lacks_is_named(described: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RunConfig.from_json(json.dumps(described))


def test_no_objective_names_a_parameter_like_a_field_of_the_run() -> None:
    for recipe in OBJECTIVES.values():
        for preset in recipe.presets.values():
            assert not field_types(type(preset.params)).keys() & field_types(RunConfig).keys()


@given(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.floats(-1, 1)))
def test_tuples_of_numbers(values: tuple[float, ...]) -> None:
    kind = tuple[float, ...]
    assert parse(",".join(map(repr, values)), kind) == values
    assert check_value(list(values), kind) == values
