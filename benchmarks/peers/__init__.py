"""Where the peers live: environments of their own, for some need other versions of what we need."""

from __future__ import annotations

from pathlib import Path

ENVIRONMENTS = ("infinity", "sentence-transformers", "fastembed", "search")
FOLDER = Path(".peers")
EXPORTED = {backend: FOLDER / "exported" / backend for backend in ("onnx", "openvino")}
"""minilm as sentence-transformers' own exporters write it."""


def environment(name: str) -> Path:
    """The folder of a peer's environment, made by `python -m benchmarks.peers NAME`."""
    return FOLDER / name


def python(name: str) -> Path:
    """Its interpreter."""
    return environment(name) / "bin" / "python"
