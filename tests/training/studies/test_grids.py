"""Tests of the arms of each paper's study: they vary exactly the paper's settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from training.config import from_preset
from training.studies.description import STUDIES, Study

SIMCSE = {"negatives": "dropout", "m": 1.0, "dcl_weight": 0.0}
BERTS = ("bert-base-uncased", "bert-large-uncased", "roberta-base", "roberta-large")


def varied(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


GRIDS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "dclr/table-2": (
        "dclr",
        [
            {},
            {"noise_ratio": 0.0},
            {"weighting": "none"},
            {"ascent_steps": 0},
            {"judge": "self"},
            {"weighting": "none", "distillation": 1.0},
            {"weighting": "reference", "ascent_loss": "reference"},  # Our arm, for the published code.
        ],
    ),
    "dclr/figure-6": (
        "dclr",
        [*varied("threshold", 0.7, 0.75, 0.8, 0.85, 0.9, 0.95), *varied("noise_ratio", 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)],
    ),
    "gs-infonce/table-3": ("gs-infonce", varied("noise_ratio", 0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0)),
    "whitenedcse/table-3": (
        "whitenedcse",
        [{"whitening": "none", "views": 2}, *varied("whitening", "pca", "zca", "group", "shuffled-group")],
    ),
    "whitenedcse/table-4": (
        "whitenedcse",
        [
            {"groups": groups, "whitening": whitening}
            for groups in (32, 48, 64, 96, 128, 192, 256, 384)
            for whitening in ("group", "shuffled-group")
        ],
    ),
    "whitenedcse/table-5": ("whitenedcse", varied("views", 2, 3, 4, 5)),
    "whitenedcse/table-6": (
        "whitenedcse",
        [{"whitening": how, "views": views} for how in ("none", "shuffled-group") for views in (2, 3, 4)],
    ),
    "imsimcse/table-1": (
        "imsimcse",
        [{**SIMCSE, side: how} for side in ("positives", "negatives") for how in ("gaussian-noise", "mean-sampling")],
    ),
    "imsimcse/table-2": (
        "imsimcse",
        [{**SIMCSE, "barlow_weight": 0.1, "artificial_rows": rows} for rows in (0, 100, 300, 704)],
    ),
    "imsimcse/table-4": (
        "imsimcse",
        [
            {},
            {"dcl_weight": 0.01},  # Our arm.
            {"dcl_weight": 0.0},
            *({"negatives": "dropout", "m": 1.0, "dcl_temperature": tau} for tau in (5.0, 10.0)),
            {"contrast_weight": 0.0, "dcl_temperature": 0.05},
        ],
    ),
    "imsimcse/table-5": (
        "imsimcse",
        [
            *varied("m", 0.5, 0.8, 0.9, 1.0, 1.1, 1.2),
            *varied("dcl_temperature", 1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
            *varied("dcl_weight", 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
        ],
    ),
}
"""The objective of each study, and the settings of every arm except SimCSE that differ from BERT-base's preset."""

MAIN = {
    "dclr/table-1": ("dclr", ("bert-base-uncased", "roberta-base")),  # The large models start from a checkpoint.
    "gs-infonce/table-1": ("gs-infonce", BERTS),
    "whitenedcse/table-1": ("whitenedcse", BERTS),
    "whitenedcse/table-2": ("whitenedcse", BERTS),
    "imsimcse/table-3": (
        "imsimcse",
        (*BERTS[:2], *(f"sentence-transformers/bert-{size}-nli-cls-token" for size in ("base", "large"))),
    ),
}


@pytest.mark.parametrize("name", GRIDS)
def test_the_arms_are_the_papers_grid(name: str) -> None:
    objective, changes = GRIDS[name]
    published = from_preset(objective, backbone="bert-base-uncased").params
    trials = Study.read(STUDIES / f"{name}.toml").as_published().trials()
    own = {trial.config.params for trial in trials if trial.config.objective == objective}
    assert own == {replace(published, **change) for change in changes}
    for trial in trials:
        assert trial.config.objective in (objective, "simcse")
        assert trial.config.backbone == "bert-base-uncased"


@pytest.mark.parametrize("name", MAIN)
def test_a_main_table_has_simcse_and_the_method_on_each_backbone(name: str) -> None:
    objective, backbones = MAIN[name]
    trials = Study.read(STUDIES / f"{name}.toml").as_published().trials()
    for trial in trials:
        config = trial.config
        assert config.params == from_preset(config.objective, backbone=config.backbone).params
    assert {(trial.config.objective, trial.config.backbone) for trial in trials} == {
        (method, backbone) for method in ("simcse", objective) for backbone in backbones
    }


def test_a_main_table_on_large_backbones_has_their_own_rates() -> None:
    trials = Study.read(STUDIES / "imsimcse/table-3.toml").as_published().trials()
    rates = {
        trial.config.backbone: trial.config.learning_rate for trial in trials if trial.config.objective != "simcse"
    }
    assert {backbone: rate for backbone, rate in rates.items() if "large" in backbone} == {
        "bert-large-uncased": 8e-6,
        "sentence-transformers/bert-large-nli-cls-token": 8e-6,
    }


def test_dclr_is_chosen_as_its_paper_chooses() -> None:
    for file in sorted((STUDIES / "dclr").glob("*.toml")):
        for trial in Study.read(file).as_published().trials():
            assert (trial.config.eval_every, trial.config.dev_tasks) == (150, "stsb+sickr")


@pytest.mark.parametrize("paper", ["dclr", "gs-infonce", "whitenedcse", "imsimcse"])
def test_on_minilm_the_arms_have_the_papers_values_too(paper: str) -> None:
    """Check the papers' values on minilm, instead of the values that we chose for mean pooling."""
    for file in sorted((STUDIES / paper).glob("*.toml")):
        for trial in Study.read(file).trials():
            if not trial.untrained:
                assert trial.config.preset.partition("+")[0] == "minilm-cls"
                assert (trial.config.pooling, trial.config.learning_rate, trial.config.batch_size) == ("cls", 3e-5, 64)
