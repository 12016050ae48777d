"""Arrays with one value per pair or example, by kind and task. A run has them in one compressed file."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from models.bundle.disk import replacing
from training.study.trial import StudyError

Arrays = Mapping[str, NDArray[Any]]
"""Arrays (n,) by task."""
DAMAGE = (OSError, ValueError, EOFError, BadZipFile, RuntimeError, zlib.error, SyntaxError, TokenError)
"""Errors that reading raises for a corrupt archive, compressed stream or array header."""


def keep(file: Path, kinds: Mapping[str, Arrays]) -> None:
    """Write the arrays of each kind. A kind is one word."""
    named = {f"{kind} {task}": values for kind, arrays in kinds.items() for task, values in arrays.items()}
    with replacing(file) as beside, beside.open("wb") as written:
        np.savez_compressed(written, allow_pickle=False, **named)


def kept(file: Path, *kinds: str) -> tuple[dict[str, NDArray[Any]], ...]:
    """Read the arrays of the given kinds that `keep` wrote.

    Raises:
        StudyError: the file is damaged, or lacks a kind.
    """
    try:
        with file.open("rb") as opened, np.load(opened) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except DAMAGE as error:
        raise StudyError(f"{file}: {error}") from error
    by_kind: dict[str, dict[str, NDArray[Any]]] = {kind: {} for kind in kinds}
    for name, values in found.items():
        kind, _, task = name.partition(" ")
        if kind not in by_kind:
            raise StudyError(f"{file}: {name}: unknown")
        by_kind[kind][task] = values
    return tuple(by_kind.values())
