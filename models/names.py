"""Names of runtimes, devices and other option values, and lazy registries.

This module imports no other module of the project, so its import is fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Literal, TypeVar

RUNTIME_NAMES = ("onnxruntime", "openvino", "tensorrt")
"""Names of the runtimes, which are the keys of `models.runtimes.RUNTIMES`."""
Device = Literal["auto", "cpu", "cuda"]
STATIC = "isosphere_static"
"""Value of `model_type` in config.json for encoders without layers (see `models.encoder.static`)."""
T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """Registry of objects by name, which are imported when they are first used.

    Before an object is used, its entry is a text `package.module:NAME`.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            module, _, attribute = self._places[name].partition(":")
            self._loaded[name] = getattr(import_module(module), attribute)
        return self._loaded[name]

    def __setitem__(self, name: str, entry: T) -> None:
        self._places[name] = ""
        self._loaded[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
