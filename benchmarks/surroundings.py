"""Files of results, and descriptions of the machine and the software versions with which figures were measured."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from models import cpus
from models.runtimes import choice
from training.machine.hardware import git_state

RESULTS = Path(__file__).parent / "results"
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


def read(file: Path) -> dict[str, Any]:
    """Return the content of a file of results, or nothing if there is no file."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
