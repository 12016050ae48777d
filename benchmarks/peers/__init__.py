"""Python environments of the peers, which are other projects that the benchmarks measure.

Each peer has its own environment, because some need other versions of our dependencies.
"""

from __future__ import annotations

from pathlib import Path

ENVIRONMENTS = ("infinity", "sentence-transformers", "fastembed", "embed-anything", "llama-cpp", "search")
FOLDER = Path(".peers").absolute()  # a contestant may run in another working directory
EXPORTED = {backend: FOLDER / "exported" / backend for backend in ("onnx", "openvino")}
"""Folders with minilm as exported by sentence-transformers, by backend."""
FLAT = FOLDER / "exported" / "flat"
"""Links to the files of the ONNX export in one folder. infinity finds a graph only in its working directory."""
CONVERTED = FOLDER / "exported" / "ctranslate2"
"""Folder with minilm in CTranslate2's format."""
GGUF = FOLDER / "exported" / "minilm.gguf"
"""minilm in llama.cpp's format."""


def environment(name: str) -> Path:
    """Return the folder of a peer's environment. `python -m benchmarks.peers NAME` creates the environment."""
    return FOLDER / name


def python(name: str) -> Path:
    """Return the path of the Python interpreter in a peer's environment."""
    return environment(name) / "bin" / "python"
