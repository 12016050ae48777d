"""Names of runtimes, devices and other option values, and lazy registries.

This module imports no other module of the project, so its import is fast.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Literal, TypeVar, cast

RUNTIME_NAMES = ("onnxruntime", "openvino", "tensorrt")
"""Names of the runtimes, which are the keys of `models.runtimes.RUNTIMES`."""
Device = Literal["auto", "cpu", "cuda"]
STATIC = "isosphere_static"
"""Value of `model_type` in config.json for encoders without layers (see `models.encoder.static`)."""
T = TypeVar("T")


class Registry(UserDict[str, T]):
    """Registry of objects by name. An object is imported when it is first used.

    Before the first use, the entry of an object is a text `package.module:NAME`.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        super().__init__(cast("Mapping[str, T]", places))

    def __getitem__(self, name: str) -> T:
        entry = super().__getitem__(name)
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self.data[name] = getattr(import_module(module), attribute)
        return entry
