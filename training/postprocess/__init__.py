"""Table of the post-processings. To add one, write a module in this folder and register it here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models.names import Registry

if TYPE_CHECKING:
    from training.postprocess.base import Postprocess

POSTPROCESSES: Registry[Postprocess[Any]] = Registry(
    {
        "whitening": "training.postprocess.whitening:POSTPROCESS",
        "flow": "training.postprocess.flow:POSTPROCESS",
        "dcl": "training.postprocess.dcl:POSTPROCESS",
    }
)
