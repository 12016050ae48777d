"""The arms of each study of a paper are the paper's own: what is varied, and nothing besides."""

from __future__ import annotations

from typing import Any

import pytest

from training.config import from_preset
from training.studies.description import STUDIES, Study
from training.studies.trial import Trial

Arms = list[tuple[str, dict[str, Any]]]
BERTS = ("bert-base-uncased", "bert-large-uncased", "roberta-base", "roberta-large")
LARGE = ("princeton-nlp/unsup-simcse-bert-large-uncased", "princeton-nlp/unsup-simcse-roberta-large")
SIMCSE: Arms = [("simcse", {})]
AS_SIMCSE = {"negatives": "dropout", "m": 1.0, "dcl_weight": 0.0}
"""What makes SimCSE of ImSimCSE."""


def varied(objective: str, name: str, *values: Any) -> Arms:
    return [(objective, {name: value}) for value in values]


AUGMENTATIONS = ("token-shuffling", "token-cutoff", "feature-cutoff", "span-cutoff")
SHARES = (0.003, 0.01, 0.03, 0.1, 0.3)

ARMS: dict[str, Arms] = {
    "dclr/figure-3": [
        *((method, {}) for method in ("simcse", "dclr")),
        *varied("simcse", "augmentation", *AUGMENTATIONS),
        *varied("dclr", "augmentation", *AUGMENTATIONS),
    ],
    "dclr/figure-4": [*SIMCSE, ("dclr", {})],
    "dclr/figure-5": [
        *((method, {}) for method in ("simcse", "dclr")),
        *varied("simcse", "fraction", *SHARES),
        *varied("dclr", "fraction", *SHARES),
    ],
    "dclr/figure-6": [
        *varied("dclr", "threshold", 0.7, 0.75, 0.8, 0.85, 0.95),
        *varied("dclr", "noise_ratio", 0.5, 1.5, 2.0, 2.5, 3.0),
        ("dclr", {}),  # phi 0.9 and k 1
    ],
    "dclr/table-2": [
        *SIMCSE,
        ("dclr", {}),
        ("dclr", {"noise_ratio": 0.0}),
        ("dclr", {"weighting": "none"}),
        ("dclr", {"ascent_steps": 0}),
        ("dclr", {"judge": "self"}),
        ("dclr", {"weighting": "none", "distillation": 1.0}),
        ("dclr", {"weighting": "reference", "ascent_loss": "reference"}),  # ours: the published code
    ],
    "gs-infonce/figure-1": [
        ("simcse", {"neighbours": 102400, "untrained": True}),
        *((method, {"neighbours": 102400}) for method in ("simcse", "gs-infonce")),
    ],
    "gs-infonce/table-3": [
        *SIMCSE,
        ("simcse", {"dropout": 0.2}),  # ours: what the dropout of GS-InfoNCE's script does
        *varied("gs-infonce", "noise_ratio", 0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
        ("gs-infonce", {}),  # a ratio of 3
    ],
    "whitenedcse/table-3": [
        ("whitenedcse", {"whitening": "none", "views": 2}),
        *varied("whitenedcse", "whitening", "pca", "zca", "group"),
        ("whitenedcse", {}),
    ],
    "whitenedcse/table-4": [
        *varied("whitenedcse", "groups", 32, 48, 64, 96, 128, 192, 256),
        *(("whitenedcse", {"groups": k, "whitening": "group"}) for k in (32, 48, 64, 96, 128, 192, 256)),
        *(("whitenedcse", {}), ("whitenedcse", {"whitening": "group"})),  # 384
    ],
    "whitenedcse/table-5": [*varied("whitenedcse", "views", 2, 4, 5), ("whitenedcse", {})],
    "whitenedcse/table-6": [
        *(("whitenedcse", {"whitening": "none", "views": views}) for views in (2, 4)),
        ("whitenedcse", {"whitening": "none"}),
        *varied("whitenedcse", "views", 2, 4),
        ("whitenedcse", {}),
    ],
    "imsimcse/table-1": [
        *SIMCSE,
        *(
            ("imsimcse", {**AS_SIMCSE, side: how})
            for side in ("positives", "negatives")
            for how in ("gaussian-noise", "mean-sampling")
        ),
    ],
    "imsimcse/table-2": [
        *SIMCSE,
        ("imsimcse", {**AS_SIMCSE, "barlow_weight": 0.1}),
        *(("imsimcse", {**AS_SIMCSE, "barlow_weight": 0.1, "artificial_rows": rows}) for rows in (100, 300, 704)),
    ],
    "imsimcse/table-4": [
        *SIMCSE,
        ("imsimcse", {}),
        ("imsimcse", {"dcl_weight": 0.01}),  # ours
        ("imsimcse", {"dcl_weight": 0.0}),
        ("imsimcse", {"negatives": "dropout", "m": 1.0}),
        ("imsimcse", {"negatives": "dropout", "m": 1.0, "dcl_temperature": 10.0}),  # ours: the published code
        ("imsimcse", {"contrast_weight": 0.0, "dcl_temperature": 0.05}),
    ],
    "imsimcse/table-5": [
        *varied("imsimcse", "m", 0.5, 0.8, 1.0, 1.1, 1.2),
        *varied("imsimcse", "dcl_temperature", 1.0, 2.0, 10.0, 20.0, 50.0),
        *varied("imsimcse", "dcl_weight", 0.02, 0.05, 0.2, 0.5, 1.0),
        ("imsimcse", {}),  # m 0.9, tau 5 and lambda 0.1
    ],
}
"""Of each study its arms: the objective, and everything that differs from its preset."""

FEW_GROUPS = (32, 48, 64, 96, 128)
ON_MINILM: dict[str, Arms] = {
    **ARMS,
    "gs-infonce/figure-1": [
        ("simcse", {"neighbours": 102400, "untrained": True, "pooling": "cls"}),
        *((method, {"neighbours": 102400}) for method in ("simcse", "gs-infonce")),
    ],
    "whitenedcse/table-4": [
        *varied("whitenedcse", "groups", *FEW_GROUPS),
        *(("whitenedcse", {"groups": k, "whitening": "group"}) for k in FEW_GROUPS),
        *(("whitenedcse", {}), ("whitenedcse", {"whitening": "group"})),  # 192, of 384 channels
    ],
}
"""The arms that start from minilm are the same, where its channels allow it."""

MAIN: dict[str, tuple[str, tuple[str, ...]]] = {
    "dclr/table-1": ("dclr", ("bert-base-uncased", "roberta-base")),
    "gs-infonce/table-1": ("gs-infonce", BERTS),
    "whitenedcse/table-1": ("whitenedcse", BERTS),
    "whitenedcse/table-2": ("whitenedcse", BERTS),
    "imsimcse/table-3": (
        "imsimcse",
        (*BERTS[:2], *(f"sentence-transformers/bert-{size}-nli-cls-token" for size in ("base", "large"))),
    ),
}
HOW = ("preset", "seed", "out", "run", "eval_every", "dev_tasks", "max_steps")
"""Of a run, what is no setting of the method."""


def arm_of(trial: Trial) -> tuple[str, dict[str, Any]]:
    """The objective, and what differs from its preset."""
    config = trial.config
    name = config.preset.partition("+")[0]
    preset = from_preset(config.objective, backbone=config.backbone, preset=name).flat()
    changes = {key: value for key, value in config.flat().items() if value != preset[key] and key not in HOW}
    more = {"fraction": trial.fraction, "untrained": trial.untrained, "neighbours": trial.neighbours}
    plain = {"fraction": 1.0, "untrained": False, "neighbours": 0}
    return config.objective, {**changes, **{key: value for key, value in more.items() if value != plain[key]}}


def published(name: str) -> list[Trial]:
    return Study.read(STUDIES / f"{name}.toml").as_published().trials()


def in_order(arms: Arms) -> list[str]:
    return sorted(f"{objective} {sorted(changes.items())}" for objective, changes in arms)


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("backbone", ["bert-base-uncased", "minilm"])
def test_the_arms_are_the_papers_grid_with_three_seeds(name: str, backbone: str) -> None:
    study = Study.read(STUDIES / f"{name}.toml")
    expected, trials = (ON_MINILM, study.trials()) if backbone == "minilm" else (ARMS, published(name))
    assert {trial.config.backbone for trial in trials} == {backbone}
    once = {trial.id: trial for trial in trials if trial.untrained or trial.config.seed == 0}
    assert in_order([arm_of(trial) for trial in once.values()]) == in_order(expected[name])
    trained = [trial for trial in trials if not trial.untrained]
    for label in {trial.label for trial in trained}:
        assert sorted(trial.config.seed for trial in trained if trial.label == label) == [0, 1, 2]


def test_every_study_of_a_paper_is_compared_with_its_paper() -> None:
    files = (
        file for paper in ("dclr", "gs-infonce", "whitenedcse", "imsimcse") for file in (STUDIES / paper).iterdir()
    )
    assert {Study.read(file).name for file in files} == {*ARMS, *MAIN}


@pytest.mark.parametrize("name", MAIN)
def test_a_main_table_has_simcse_and_the_method_on_each_backbone(name: str) -> None:
    objective, backbones = MAIN[name]
    trials = [trial for trial in published(name) if trial.config.backbone not in LARGE]
    for trial in trials:
        assert trial.config.preset == from_preset(trial.config.objective, backbone=trial.config.backbone).preset
        assert not arm_of(trial)[1]
    assert sorted((each.config.objective, each.config.backbone, each.config.seed) for each in trials) == sorted(
        (method, backbone, seed) for method in ("simcse", objective) for backbone in backbones for seed in (0, 1, 2)
    )


def test_large_dclr_starts_from_simcses_weights_and_stands_beside_them() -> None:
    trials = [trial for trial in published("dclr/table-1") if trial.config.backbone in LARGE]
    assert in_order([arm_of(trial) for trial in trials]) == in_order(
        2 * [("simcse", {"untrained": True}), *3 * [("dclr", {})]]
    )
    for backbone in LARGE:
        assert {trial.untrained for trial in trials if trial.config.backbone == backbone} == {True, False}


def test_a_main_table_on_large_backbones_has_their_own_rates() -> None:
    trials = [trial for trial in published("imsimcse/table-3") if trial.config.objective != "simcse"]
    rates = {trial.config.backbone: trial.config.learning_rate for trial in trials}
    assert {backbone: rate for backbone, rate in rates.items() if "large" in backbone} == {
        "bert-large-uncased": 8e-6,
        "sentence-transformers/bert-large-nli-cls-token": 8e-6,
    }


def test_dclr_is_chosen_as_its_paper_chooses() -> None:
    for file in sorted((STUDIES / "dclr").glob("*.toml")):
        for trial in Study.read(file).as_published().trials():
            assert trial.untrained or (trial.config.eval_every, trial.config.dev_tasks) == (150, "stsb+sickr")


@pytest.mark.parametrize("paper", ["dclr", "gs-infonce", "whitenedcse", "imsimcse"])
def test_on_minilm_the_arms_have_the_papers_values_too(paper: str) -> None:
    """Not those that we chose for minilm's mean: another threshold, a tenth of the weight of DCL."""
    for file in sorted((STUDIES / paper).glob("*.toml")):
        for trial in Study.read(file).trials():
            if not trial.untrained:
                assert trial.config.preset.partition("+")[0] == "minilm-cls"
                assert (trial.config.pooling, trial.config.learning_rate, trial.config.batch_size) == ("cls", 3e-5, 64)
