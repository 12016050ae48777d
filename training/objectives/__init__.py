"""The table of objectives. To add one, write a module in this folder and register its recipe here."""

from __future__ import annotations

from typing import Any

from training.objectives import dclr, distillation, gs_infonce, imsimcse, simcse, whitenedcse
from training.objectives.base import Recipe

OBJECTIVES: dict[str, Recipe[Any]] = {
    "simcse": simcse.RECIPE,
    "gs-infonce": gs_infonce.RECIPE,
    "dclr": dclr.RECIPE,
    "whitenedcse": whitenedcse.RECIPE,
    "imsimcse": imsimcse.RECIPE,
    "distillation": distillation.RECIPE,
}
