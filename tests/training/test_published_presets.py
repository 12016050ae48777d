"""Tests of each preset's numbers against those of its paper or script, with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from training.config import from_preset
from training.objectives import OBJECTIVES
from training.run import teacher_config

SIMCSE = "README of princeton-nlp/SimCSE"
GS_SCRIPT = "run.sh of gsInfoNCE; ratio, and the batch of 64: Wu et al. 2022"
DCLR = "Zhou et al. 2022, whose footnote 2 has the base teachers of large models; batch and rate: run.sh"
WHITENED = "Zhuo et al. 2023"
IMSIMCSE = "Xu et al. 2023; SBERT has the rate of BERT of its size"
IMSIMCSE_SCRIPT = "not in the paper; scripts of SimCSE-plus-plus"


@dataclass(frozen=True)
class Published:
    """Values for a backbone from a paper, or from its script where the paper has none."""

    objective: str
    backbone: str
    source: str
    batch_size: int
    learning_rate: float
    params: dict[str, Any]
    epochs: int = 1
    dropout: float | None = None
    teacher: str | None = None
    preset: str | None = None
    """Name of the preset, if it is not the backbone's name."""


def simcse(backbone: str, batch_size: int, learning_rate: float) -> Published:
    return Published("simcse", backbone, SIMCSE, batch_size, learning_rate, {"temperature": 0.05, "head": True})


def gs(backbone: str, batch_size: int, rate: float, *, ratio: float = 3.0, **more: Any) -> Published:
    params = {"temperature": 0.05, "noise_ratio": ratio, "noise_weight": 1.0}
    return Published("gs-infonce", backbone, GS_SCRIPT, batch_size, rate, params, **more)


def dclr(backbone: str, batch_size: int, rate: float, *, phi: float, k: float, teacher: str = "") -> Published:
    params = {"threshold": phi, "noise_ratio": k, "ascent_steps": 4, "ascent_rate": 1e-3, "temperature": 0.05}
    return Published("dclr", backbone, DCLR, batch_size, rate, params, epochs=3, teacher=teacher or backbone)


def whitened(backbone: str, groups: int) -> Published:
    params = {"groups": groups, "views": 3, "multi_positive": "L1", "temperature": 0.05}
    return Published("whitenedcse", backbone, WHITENED, 64, 3e-5, params)


def imsimcse(backbone: str, rate: float, source: str = IMSIMCSE, **more: Any) -> Published:
    params = {"m": 0.9, "dcl_temperature": 5.0, "dcl_weight": 0.1, "temperature": 0.05, "samples": 10}
    return Published("imsimcse", backbone, source, 64, rate, params, **more)


PUBLISHED = (
    simcse("bert-base-uncased", 64, 3e-5),
    simcse("bert-large-uncased", 64, 1e-5),
    simcse("roberta-base", 512, 1e-5),
    simcse("roberta-large", 512, 3e-5),
    gs("bert-base-uncased", 64, 3e-5, dropout=0.2),
    gs("bert-large-uncased", 64, 1e-5, dropout=0.2),
    gs("roberta-base", 64, 1e-5, dropout=0.1),
    gs("roberta-large", 128, 2e-5, dropout=0.1, ratio=1.5),
    gs("roberta-large", 64, 3e-5, dropout=0.1, preset="roberta-large-paper"),
    dclr("bert-base-uncased", 128, 3e-5, phi=0.9, k=1.0),
    dclr("roberta-base", 128, 3e-5, phi=0.85, k=2.5),
    dclr("bert-large-uncased", 256, 3e-5, phi=0.9, k=4.0, teacher="bert-base-uncased"),
    dclr("roberta-large", 256, 1e-5, phi=0.85, k=5.0, teacher="roberta-base"),
    whitened("bert-base-uncased", 384),
    whitened("bert-large-uncased", 512),  # The paper's 384 groups do not divide 1024.
    whitened("roberta-base", 256),
    whitened("roberta-large", 256),
    imsimcse("bert-base-uncased", 3e-5),
    imsimcse("bert-large-uncased", 8e-6),
    imsimcse("sentence-transformers/bert-base-nli-cls-token", 3e-5, preset="bert-base-uncased"),
    imsimcse("sentence-transformers/bert-large-nli-cls-token", 8e-6, preset="bert-large-uncased"),
    imsimcse("roberta-base", 1e-5, IMSIMCSE_SCRIPT),
    imsimcse("roberta-large", 1e-5, IMSIMCSE_SCRIPT),
)


@pytest.mark.parametrize("of", PUBLISHED, ids=lambda of: f"{of.objective}-{of.preset or of.backbone}-{of.backbone}")
def test_a_preset_has_its_papers_numbers(of: Published) -> None:
    named = of.preset if of.preset in ("roberta-large-paper",) else None
    config = from_preset(of.objective, backbone=of.backbone, preset=named)
    assert config.preset == (of.preset or of.backbone)
    assert (config.batch_size, config.learning_rate, config.epochs) == (of.batch_size, of.learning_rate, of.epochs)
    assert (config.dropout, config.pooling, config.max_length) == (of.dropout, "cls", 32)
    assert {name: getattr(config.params, name) for name in of.params} == of.params
    if of.teacher:
        assert teacher_config(config).backbone == of.teacher


def test_every_preset_of_the_papers_is_in_the_table() -> None:
    known = {(of.objective, of.preset or of.backbone) for of in PUBLISHED}
    ours = {"minilm", "minilm-cls", "minilm-passages"}
    there = {(name, preset) for name, recipe in OBJECTIVES.items() for preset in recipe.presets if preset not in ours}
    assert there == known


@pytest.mark.parametrize(
    ("objective", "rate"),
    [("simcse", 1e-5), ("gs-infonce", 3e-5), ("dclr", 3e-5), ("whitenedcse", 1e-5), ("imsimcse", 1e-5)],
)
def test_minilm_has_the_rates_that_development_data_chose(objective: str, rate: float) -> None:
    config = from_preset(objective)
    assert (config.batch_size, config.learning_rate, config.epochs) == (64, rate, 1)


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if "minilm-cls" in OBJECTIVES[name].presets])
def test_on_cls_of_minilm_all_have_the_values_of_bert_base_and_one_rate(objective: str) -> None:
    """Check all values except the number of groups, which is half as large."""
    ours, theirs = (from_preset(objective, preset=preset) for preset in ("minilm-cls", "bert-base-uncased"))
    assert (ours.pooling, ours.batch_size, ours.learning_rate) == ("cls", 64, 3e-5)
    changes = {"groups": 384} if objective == "whitenedcse" else {}
    assert ours.override(changes).params == theirs.params
