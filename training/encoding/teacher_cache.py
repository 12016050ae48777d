"""Cache of a frozen encoder's vectors, which are the same in every epoch."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.bundle.disk import EXHAUSTED, fsync, naming
from models.bundle.tokenizer import Tokens
from training.encoding.views import Teacher, to_device
from training.machine.state_file import digest

log = logging.getLogger(__name__)
SUFFIX = ".vectors"


class TeacherCache:
    """A frozen encoder that encodes each sentence once per run and then reads its vector from a file.

    The file is named after the encoder's weights. The file has one record for each sentence: a hash of the sentence's
    tokens, and its vector in float32. `counts` maps the file's name to the number of records up to the last checkpoint.
    A resumed run drops all records after this number, and computes them again in the same batches. The host waits for
    the device whenever a batch has new sentences. If the disk is full, the file is removed, and sentences are encoded
    again in every epoch.

    Raises:
        OSError: the file can't be read or written; the message names it.
    """

    def __init__(self, teacher: Teacher, folder: Path, name: str, counts: dict[str, int]) -> None:
        self._teacher = teacher
        self._counts, self._full = counts, False
        self._record = np.dtype([("key", "<u8"), ("vector", "<f4", (teacher.encoder.dim,))])
        # The digest covers everything that affects the vectors.
        of = digest(teacher.encoder.state_dict(), salt=f"{teacher.encoder.pooling} {teacher.autocast}")
        self._file = folder / f"{name}-{of}{SUFFIX}"
        with naming(self._file):
            size = self._file.stat().st_size if self._file.exists() else 0
            count = min(counts.get(self._file.name, 0), size // self._record.itemsize)
            if size:
                os.truncate(self._file, count * self._record.itemsize)
            kept = np.memmap(self._file, self._record, "r")["key"].tolist() if count else []
        counts[self._file.name] = count
        self._places = {key: place for place, key in enumerate(kept)}

    def __call__(self, tokens: Sequence[Tokens]) -> Tensor:
        """Return the vectors (n, D') of tokenised sentences, on the encoder's device.

        The tokens are from the encoder's vocabulary.
        """
        keys = [_key(each) for each in tokens]
        new = {key: each for key, each in zip(keys, tokens, strict=True) if key not in self._places}
        if new and not self._full:
            self._keep(list(new), self._teacher(list(new.values())))
        if self._full:
            return self._teacher(tokens)
        return to_device(self._vectors(keys), self._teacher.encoder.device)

    def _keep(self, keys: Sequence[int], vectors: Tensor) -> None:
        records = np.empty(len(keys), self._record)
        records["key"], records["vector"] = keys, vectors.float().cpu().numpy()
        try:
            with naming(self._file), self._file.open("ab") as file:
                file.write(records.tobytes())
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            log.warning(
                "%s: %s; the cache is off, so every epoch encodes every sentence again", self._file, error.strerror
            )
            self._file.unlink()
            self._full, self._counts[self._file.name] = True, 0
            return
        self._places |= {key: place for place, key in enumerate(keys, start=self._counts[self._file.name])}
        self._counts[self._file.name] += len(keys)

    def _vectors(self, keys: Sequence[int]) -> NDArray[np.float32]:
        size = self._record.itemsize
        with naming(self._file), self._file.open("rb") as file:
            read = b"".join(os.pread(file.fileno(), size, self._places[key] * size) for key in keys)
        return np.frombuffer(read, self._record)["vector"].copy()


def fsync_caches(folder: Path) -> None:
    for file in folder.glob(f"*{SUFFIX}"):
        with naming(file):
            fsync(file)


def remove_caches(folder: Path) -> None:
    for file in folder.glob(f"*{SUFFIX}"):
        file.unlink()


def _key(tokens: Tokens) -> int:
    """Hash tokens to 64 bits."""
    return int.from_bytes(hashlib.blake2b(tokens.ids.tobytes(), digest_size=8).digest(), "little")
