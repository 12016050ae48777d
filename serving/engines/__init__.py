"""The engines by name. Each opens a bundle folder quickly and says how to load it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from serving.engines import fake, onnxruntime
from serving.ports import Model

ENGINES: dict[str, Callable[[Path], Model]] = {
    "onnxruntime": onnxruntime.open_bundle,
    "fake": fake.open_bundle,
}
