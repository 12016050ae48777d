"""The environment of a run, recorded for traceability and reproduction."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from training.machine.checkout import checkout

PACKAGES = ("isosphere", "torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy")


def environment() -> dict[str, Any]:
    """Return versions, hardware, and the git commit of this code (None outside a checkout)."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        **checkout(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
