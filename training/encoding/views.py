"""Encoding of views, and a cache for the vectors of frozen encoders.

Views are vectors of the same sentences from different encoder passes. All encoder passes of a training step begin in
this module.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.bundle.disk import EXHAUSTED, fsync, naming
from models.bundle.tokenizer import Tokens
from models.encoder.encoder import Encoder, dropout_off, full_precision
from training.data.augment import Augmentation
from training.encoding.packing import Pass, encode_passes, group_by_length
from training.machine.state_file import digest
from training.objectives.base import Needs, Views

GRANULE = {"cuda": 8}
"""Number of tokens, by device type. Sentences are padded to a multiple of this number.

Other devices need no padding. Padding reduces the number of different shapes, so fewer CUDA graphs must be recorded.
Matrix units are also faster with such lengths.
"""


def make_passes(
    encoder: Encoder, tokens: Sequence[Tokens], firsts: Sequence[Tokens] | None = None, *, most: int | None = None
) -> list[Pass]:
    """Divide sentences into passes on the encoder's device, with at most `most` sentences each.

    If the first view of each sentence is computed from another text than the other views, `firsts` are the tokens of
    these texts.
    """
    groups = group_by_length([len(sentence) for sentence in tokens], device=encoder.device.type, most=most)
    passes = [_padded(encoder, tokens, rows) for rows in groups]
    if firsts is None:
        return passes
    return [each._replace(first=_padded(encoder, firsts, rows)) for each, rows in zip(passes, groups, strict=True)]


def _padded(encoder: Encoder, tokens: Sequence[Tokens], rows: Sequence[int]) -> Pass:
    longest = max(len(tokens[i]) for i in rows)
    granule = GRANULE.get(encoder.device.type, 1)
    length = max(longest, min(-(-longest // granule) * granule, encoder.max_length))
    arrays = [np.array(rows), *encoder.tokenizer.pad([tokens[i] for i in rows], length=length)]
    places, ids, mask = (to_device(array, encoder.device) for array in arrays)
    return Pass(places, ids, mask)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy the array to the device without waiting for the device."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def in_batch_order(passes: Iterable[Pass], pooled: Tensor) -> Tensor:
    """Reorder n vectors (..., n, D) from the order of the passes to the order of the batch."""
    return pooled[..., torch.cat([each.rows for each in passes]).argsort(), :]


class ViewEncoder(nn.Module):
    """A module that computes all views that an objective needs."""

    def __init__(
        self,
        encoder: Encoder,
        needs: Needs,
        *,
        autocast: torch.dtype | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        """Initialise the module.

        `autocast` is the dtype of matrix products, and None means float32. `augmentation` changes the last
        dropout view.
        """
        super().__init__()
        self.encoder = encoder
        self.needs = needs
        self.autocast = autocast
        self.augmentation = augmentation

    def forward(self, passes: Sequence[Pass]) -> Tensor:
        """Encode the n sentences of all passes to (V, n, D) views.

        The last views are the clean views, which are computed without dropout, if the objective needs them. Positive
        pairs of two texts have two clean views, one for each text. The result is float32 under any `autocast`.

        If a view is augmented, it needs a forward pass of its own. If positive pairs have two texts, the first text
        also needs a forward pass of its own. If possible, a single forward pass computes all other views.
        """
        plain, clean = self.needs.views - (self.augmentation is not None), self.needs.clean
        with autocast(self.encoder, self.autocast):
            if firsts := [each.first for each in passes if each.first is not None]:
                first = encode_passes(self.encoder, firsts, clean=clean)
                others = encode_passes(self.encoder, passes, plain - 1, clean=clean)
                return torch.cat([first[:1], others[: plain - 1], first[1:], others[plain - 1 :]])
            views = encode_passes(self.encoder, passes, plain, clean=clean) if plain or clean else None
            if self.augmentation is None:
                assert views is not None, "without an augmentation, there is a plain or a clean view"
                return views
            changed = [self.augmentation(self.encoder, each.input_ids, each.attention_mask) for each in passes]
        augmented = full_precision(torch.cat(changed))[None]
        return augmented if views is None else torch.cat([views[:plain], augmented, views[plain:]])

    def split(self, pooled: Tensor, teacher: Tensor | None, start: Tensor | None = None) -> Views:
        clean = pooled[self.needs.views :] if self.needs.clean else None
        return Views(noisy=pooled[: self.needs.views], clean=clean, teacher=teacher, start=start)


FrozenEncoder = Callable[[Sequence[Tokens]], Tensor]
"""Type of a function from the token ids of n sentences to the vectors (n, D') of a frozen encoder."""


@dataclass(frozen=True)
class Teacher:
    """A frozen encoder without dropout and gradient. It encodes each sentence once per step."""

    encoder: Encoder
    autocast: torch.dtype | None = None

    def __call__(self, tokens: Sequence[Tokens]) -> Tensor:
        """Return the teacher's vectors (n, D') of n sentences, which must be tokenised with the teacher's tokenizer."""
        passes = make_passes(self.encoder, tokens)
        with torch.no_grad(), dropout_off(self.encoder), autocast(self.encoder, self.autocast):
            (pooled,) = encode_passes(self.encoder, passes)
        return in_batch_order(passes, pooled)


def autocast(encoder: Encoder, dtype: torch.dtype | None) -> torch.autocast:
    """Return a context in which matrix products are computed in `dtype`. None keeps float32."""
    return torch.autocast(encoder.device.type, dtype=dtype, enabled=dtype is not None)


# Cache of a frozen encoder's vectors, which are the same in every epoch.

log = logging.getLogger(__name__)
SUFFIX = ".vectors"


class TeacherCache:
    """A frozen encoder that encodes each sentence once per run. Later, the sentence's vector is read from a file.

    The file's name contains a hash of the encoder's weights. The file has one record for each sentence: a hash of the
    sentence's tokens, and its vector in float32. `counts` maps the file's name to its number of records, and is updated
    with the file. A resumed run passes the `counts` of its last checkpoint. Later records are then dropped, and
    computed again in the same batches as before the interruption.

    The host waits for the device whenever a batch has new sentences. If a write fails because the disk is full or
    broken, the file is removed, and from then on every epoch encodes its sentences again.

    Raises:
        OSError: the file can't be read, or can't be written for a reason other than the disk; the message names it.
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
