"""Sentence embeddings in Python. The vectors are the same as the server's.

>>> from isosphere import load
>>> encoder = load("default")
>>> encoder.encode(["A cat sits outside.", "Taxes rose."]).shape
(2, 384)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isosphere.encoder import Encoder, load

__all__ = ["Encoder", "load"]


def __getattr__(name: str) -> Any:  # Imported on demand, because the command's help needs no NumPy.
    if name in __all__:
        from isosphere import encoder

        return getattr(encoder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
