"""`list`: objectives, presets, post-processings and tasks."""

from __future__ import annotations

import argparse

from training.evaluation.suite import TASKS
from training.objectives import OBJECTIVES
from training.postprocess import POSTPROCESSES


def show(_options: argparse.Namespace) -> int:
    """Print objectives with their presets and ablations, post-processings, and the names of tasks."""
    for name, recipe in OBJECTIVES.items():
        print(f"{name}: {recipe.summary}")
        for preset, values in recipe.presets.items():
            print(
                f"  {preset}: batch {values.batch_size}, learning rate {values.learning_rate:g}, "
                f"{values.pooling} pooling, epochs {values.epochs}"
                f"{'' if values.dropout is None else f', dropout {values.dropout:g}'} ({values.source})"
            )
        for ablation, changes in recipe.ablations.items():
            print(f"  +{ablation}: {', '.join(f'{key}={value}' for key, value in changes.items())}")
    for name, chosen in POSTPROCESSES.items():
        print(f"postprocess {name}: {chosen.summary}")
    print(f"tasks: {', '.join(TASKS)}")
    return 0
