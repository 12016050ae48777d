"""Environments of the peers. Some need other versions of our dependencies."""

from __future__ import annotations

from pathlib import Path

ENVIRONMENTS = ("infinity", "sentence-transformers", "fastembed", "search")
FOLDER = Path(".peers")
EXPORTED = {backend: FOLDER / "exported" / backend for backend in ("onnx", "openvino")}
"""minilm as exported by sentence-transformers."""


def environment(name: str) -> Path:
    """Return the folder of a peer's environment, which `python -m benchmarks.peers NAME` creates."""
    return FOLDER / name


def python(name: str) -> Path:
    """Return the interpreter of a peer's environment."""
    return environment(name) / "bin" / "python"
