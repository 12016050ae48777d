"""A frozen encoder's vectors, kept from epoch to epoch: what it says of a sentence never changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.tokenizer import Tokens
from training.views import Teacher

SUFFIX = ".vectors"


class Recall:
    """A frozen encoder that a sentence passes through once a run; from then on its vector is read from a file.

    The file has a record for each sentence, a hash of its tokens and its vector in float32, and only grows: a run that
    is taken up has what it had. A device that computes while Python goes on is waited for where a sentence is new.

    Raises:
        OSError: the file can't be read or written.
    """

    def __init__(self, teacher: Teacher, file: Path) -> None:
        self._teacher = teacher
        self._device = teacher.encoder.device
        self._record = np.dtype([("key", "<u8"), ("vector", "<f4", (teacher.encoder.dim,))])
        self._file = file
        size = self._record.itemsize
        whole, torn = divmod(file.stat().st_size if file.exists() else 0, size)
        if torn:  # by whatever ended the process
            os.truncate(file, whole * size)
        kept = np.memmap(file, self._record, "r", shape=(whole,))["key"].tolist() if whole else []
        self._places = {key: place for place, key in enumerate(kept)}

    def __call__(self, tokens: Sequence[Tokens]) -> Tensor:
        """(n, D') of sentences in the encoder's vocabulary, on its device."""
        keys = [_key(each) for each in tokens]
        new = {key: each for key, each in zip(keys, tokens, strict=True) if key not in self._places}
        if new:
            self._keep(list(new), self._teacher(list(new.values())))
        return torch.from_numpy(self._vectors(keys)).to(self._device)

    def _keep(self, keys: Sequence[int], vectors: Tensor) -> None:
        records = np.empty(len(keys), self._record)
        records["key"], records["vector"] = keys, vectors.float().cpu().numpy()
        with self._file.open("ab") as file:
            file.write(records.tobytes())
        self._places |= {key: place for place, key in enumerate(keys, start=len(self._places))}

    def _vectors(self, keys: Sequence[int]) -> NDArray[np.float32]:
        size = self._record.itemsize
        with self._file.open("rb") as file:
            read = b"".join(os.pread(file.fileno(), size, self._places[key] * size) for key in keys)
        return np.frombuffer(read, self._record)["vector"].copy()


def forget(folder: Path) -> None:
    """Removes what the run in `folder` kept."""
    for file in folder.glob(f"*{SUFFIX}"):
        file.unlink()


def _key(tokens: Tokens) -> int:
    """64 bits, as the corpus knows its sentences by."""
    return int.from_bytes(hashlib.blake2b(tokens.ids.tobytes(), digest_size=8).digest(), "little")
