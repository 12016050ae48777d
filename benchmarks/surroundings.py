"""Description of the machine and of the software versions with which figures were measured."""

from __future__ import annotations

import platform
from importlib.metadata import distributions
from typing import Any

from models import cpus
from models.runtimes import choice
from training.machine.hardware import git_state

PACKAGES = (
    "torch",
    "transformers",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "tensorrt",
    "sentence-transformers",
    "tokenizers",
    "faiss-cpu",
    "faiss-gpu",
    "faiss-gpu-cuvs",
    "pymilvus",
    "milvus-lite",
    "ray",
    "numpy",
)


def surroundings() -> dict[str, Any]:
    """Return facts about the machine, the versions of the packages, and the commit."""
    installed = {package.name: package.version for package in distributions()}
    return {
        "machine": {"cpu": choice.cpu(), "cpus": cpus.available(), "python": platform.python_version()},
        "versions": {package: installed[package] for package in PACKAGES if package in installed},
        **git_state(),
    }
