"""Python environments of the peers, which are other projects that the benchmarks measure.

Each peer has its own environment, because some need other versions of our dependencies.
"""

from __future__ import annotations

from pathlib import Path

ENVIRONMENTS = ("infinity", "sentence-transformers", "fastembed", "search")
FOLDER = Path(".peers")
EXPORTED = {backend: FOLDER / "exported" / backend for backend in ("onnx", "openvino")}
"""Folders with minilm as exported by sentence-transformers, by backend."""


def environment(name: str) -> Path:
    """Return the folder of a peer's environment. `python -m benchmarks.peers NAME` creates the environment."""
    return FOLDER / name


def python(name: str) -> Path:
    """Return the path of the Python interpreter in a peer's environment."""
    return environment(name) / "bin" / "python"
