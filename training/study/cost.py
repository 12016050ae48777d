"""About how long a study takes, from the sentences that go through encoders and the speeds that were measured here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from training.objectives import OBJECTIVES
from training.study.trial import Trial

SENTENCES = 1_000_000
"""Of the papers' corpus, where a run has epochs."""
TRAINED = 3
"""A sentence's way forth and back, in ways forth."""
DEV, TASKS = 3_000, 32_000
"""Different sentences of an evaluation while training, and of the STS tasks at the end."""
CORE = 490.0
"""Sentences a second, forth, of minilm on one core of a Xeon: benchmarks/results/studies/objectives.jsonl."""
DEVICE = 27_600.0
"""The same of BERT-base on an H100, six times what SimCSE trains on: benchmarks/results/gpu/recorded_steps.json."""
LARGE = 3.0
"""How much more a large model computes than a base one."""


def cpu_hours(trials: Sequence[Trial]) -> float:
    """Of one core, for runs from minilm; what several arms share is counted once."""
    return sum(map(_passes, _different(trials))) / CORE / 3600


def gpu_hours(trials: Sequence[Trial]) -> float:
    """Of an H100, for runs from the papers' backbones, one after the other."""
    weighted = (_passes(each) * (LARGE if "large" in each.config.backbone else 1.0) for each in _different(trials))
    return sum(weighted) / DEVICE / 3600


def _different(trials: Sequence[Trial]) -> list[Trial]:
    return list({trial.id: trial for trial in trials}.values())


def _passes(trial: Trial) -> float:
    """Sentences that go forth through an encoder; a teacher's own training is one run of SimCSE more."""
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
    """Any that the parameters accept: what an objective needs does not depend on it."""
    return 2 * int(getattr(params, "groups", 1))
