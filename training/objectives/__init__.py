"""Table of the objectives. To add one, write a module in this folder and register its recipe here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models.names import Registry

if TYPE_CHECKING:
    from training.objectives.base import Recipe

OBJECTIVES: Registry[Recipe[Any]] = Registry(
    {
        "simcse": "training.objectives.simcse:RECIPE",
        "gs-infonce": "training.objectives.gs_infonce:RECIPE",
        "dclr": "training.objectives.dclr:RECIPE",
        "whitenedcse": "training.objectives.whitenedcse:RECIPE",
        "imsimcse": "training.objectives.imsimcse:RECIPE",
        "distillation": "training.objectives.distillation:RECIPE",
        "static": "training.objectives.static:RECIPE",
    }
)
