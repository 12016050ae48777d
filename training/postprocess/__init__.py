"""The table of post-processings. To add one, write a module in this folder and register it here."""

from __future__ import annotations

from typing import Any

from training.postprocess import dcl, flow, whitening
from training.postprocess.base import Postprocess

POSTPROCESSES: dict[str, Postprocess[Any]] = {
    "whitening": whitening.POSTPROCESS,
    "flow": flow.POSTPROCESS,
    "dcl": dcl.POSTPROCESS,
}
