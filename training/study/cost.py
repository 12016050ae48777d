"""Estimated duration of a study, from the number of encoded sentences and speeds measured by this project."""

from __future__ import annotations

import math
from collections.abc import Sequence

from training.objectives import OBJECTIVES
from training.study.trial import Trial

SENTENCES = 1_000_000
"""Sentences in the papers' corpus. Runs whose length is given in epochs are assumed to use it."""
TRAINED = 3
"""Cost of a forward and a backward pass together, relative to a forward pass."""
DEV, TASKS = 3_000, 32_000
"""Number of distinct sentences in an evaluation during training, and in the final STS tasks."""
CORE = 490.0
"""Sentences per second of a forward pass of minilm on one core of a Xeon (benchmarks/results/studies/objectives.jsonl).
"""
DEVICE = 27_600.0
"""Sentences per second of a forward pass of BERT-base on an H100.

The figure is six times SimCSE's training speed in benchmarks/results/gpu/recorded_steps.json.
"""
LARGE = 3.0
"""Compute of a large model relative to a base model."""


def cpu_hours(trials: Sequence[Trial]) -> float:
    """Estimate the hours on one core for runs that start from minilm. Runs shared by several arms count once."""
    return sum(map(_passes, _different(trials))) / CORE / 3600


def gpu_hours(trials: Sequence[Trial]) -> float:
    """Estimate the hours on one H100 for runs that start from the papers' backbones, one after the other."""
    weighted = (_passes(each) * (LARGE if "large" in each.config.backbone else 1.0) for each in _different(trials))
    return sum(weighted) / DEVICE / 3600


def _different(trials: Sequence[Trial]) -> list[Trial]:
    return list({trial.id: trial for trial in trials}.values())


def _passes(trial: Trial) -> float:
    """Count the forward passes of sentences. Training a teacher counts as one more run of SimCSE."""
    judged = float(TASKS + trial.neighbours)
    if trial.untrained:
        return judged
    config = trial.config
    steps = config.max_steps or math.ceil(config.epochs * SENTENCES * trial.fraction / config.batch_size)
    evaluations = (steps // config.eval_every + 1) * DEV
    needs = OBJECTIVES[config.objective].build(config.params, _width(config.params)).needs
    a_sentence = TRAINED * (needs.views + needs.clean) + needs.teacher
    teacher = steps * config.batch_size * TRAINED * 2 + evaluations if needs.teacher and not config.teacher else 0
    return steps * config.batch_size * a_sentence + evaluations + teacher + judged


def _width(params: object) -> int:
    """Return a width that the parameters accept. Any will do, because an objective's needs don't depend on it."""
    return 2 * int(getattr(params, "groups", 1))
