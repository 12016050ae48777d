"""Engines by name. Each opens a bundle folder quickly and can then load it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from models.runtimes import RUNTIMES
from serving.engines import fake, runtime
from serving.ports import Model

ENGINES: dict[str, Callable[[Path], Model]] = {
    "auto": runtime.open_bundle,
    **{name: partial(runtime.open_bundle, runtime=name) for name in RUNTIMES},
    "fake": fake.open_bundle,
}
