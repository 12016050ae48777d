"""Batches of pre-training: the corpus as sequences of equal length, in which words are masked anew in every step."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from models.bundle.tokenizer import Tokens
from training.data.corpus import Corpus
from training.machine.devices import Devices
from training.pretraining.config import PretrainConfig
from training.pretraining.model import IGNORED, MaskedLM, MaskedSequences, MaskedTokens, mask_words

GRANULE = {"cuda": 512}
"""Multiple to which the number of masked tokens of a chunk is padded, by device type.

On CUDA, each different number needs a CUDA graph of its own. Without padding, the number would vary with the tokens per
word and the [CLS] tokens per sequence. Other devices need no padding.
"""
HELD_OUT_SEED = 0
"""Seed of the held-out masks. It is the same in all runs, so that runs are comparable."""


@dataclass(frozen=True)
class Batch:
    """The batch of one step, of which this process computes a part."""

    chunks: Sequence[MaskedTokens]
    """Chunks of this process's part of the batch. They are computed one after another."""
    hidden: int
    """Number of masked tokens in the whole batch."""
    lengths: Sequence[int]
    """Lengths in tokens of the sentences, or parts of sentences, of the whole batch."""
    position: Position
    """Position in the corpus at which the next batch starts."""

    def __len__(self) -> int:
        """Return the number of sentences in the batch. A part of a sentence counts as a sentence."""
        return len(self.lengths)


class Batches:
    """Training batches and held-out batches of a run."""

    def __init__(self, config: PretrainConfig, model: MaskedLM, corpus: Corpus, devices: Devices) -> None:
        self._config = config
        self._model = model
        self._corpus = corpus
        self._devices = devices

    def after(self, step: int, position: Position) -> Iterator[Batch]:
        """Yield the batches that follow step number `step`, from `position` in the corpus.

        The masks of a batch depend only on the seed and the number of the step. A resumed run therefore has the same
        batches as an uninterrupted run.
        """
        config = self._config
        read = self._corpus.batches(BLOCK, seed=config.seed, start=position.block)
        blocks = (concatenate(self._encode(sentences)) for sentences in read)
        packed = cut(blocks, rows=config.batch_size, length=config.max_length, start=position)
        for number, (ids, end) in enumerate(packed, start=step + 1):
            hidden = self._masked(ids, np.random.default_rng((config.seed, number)))
            chunks = self._chunks(hidden, self._devices.rows(len(ids)))
            yield Batch(chunks, len(hidden.labels), sentence_lengths(ids, self._model.vocabulary.cls), end)

    def held_out(self) -> list[MaskedTokens]:
        """Return the held-out sentences that monitor training, packed into sequences, masked, and divided into chunks.

        The sentences are not shuffled. The last sequence may be shorter than the others.
        """
        ids, length = concatenate(self._encode(self._corpus.census.monitored)), self._config.max_length
        rng = np.random.default_rng(HELD_OUT_SEED)
        whole, rest = np.split(ids, [len(ids) - len(ids) % length])
        packed = [each for each in (whole.reshape(-1, length), rest[None]) if each.size]
        return [chunk for each in packed for chunk in self._chunks(self._masked(each, rng), range(len(each)))]

    def _encode(self, sentences: Sequence[str]) -> list[Tokens]:
        """Tokenise sentences. A literal [CLS] in a text becomes [UNK], because [CLS] marks the start of a sentence."""
        vocabulary = self._model.vocabulary
        found = self._model.encoder.tokenizer.encode(sentences, max_length=sys.maxsize)
        for tokens in found:
            said = tokens.ids[1:]
            said[said == vocabulary.cls] = vocabulary.unknown
        return found

    def _masked(self, ids: np.ndarray, rng: np.random.Generator) -> MaskedSequences:
        return mask_words(ids, self._model.vocabulary, share=self._config.share, rng=rng)

    def _chunks(self, hidden: MaskedSequences, rows: range) -> list[MaskedTokens]:
        """Divide the sequences `rows` of `hidden` into chunks. The configuration's `chunk_size` limits their size."""
        size = self._config.chunk_size or self._config.batch_size
        starts = rows[::size]
        return [_questions(hidden, range(s, min(s + size, rows.stop)), self._devices.device) for s in starts]


def _questions(hidden: MaskedSequences, rows: range, device: torch.device) -> MaskedTokens:
    """Return the sequences `rows` of `hidden` as tensors, which are in pinned memory if the device is CUDA.

    Copies from pinned memory are asynchronous. The masked tokens are padded with ignored labels, so that most steps
    have the same number of masked tokens.
    """
    length = hidden.ids.shape[1]
    first, last = np.searchsorted(hidden.places, (rows.start * length, rows.stop * length))
    idle = -(last - first) % GRANULE.get(device.type, 1)
    arrays = (
        hidden.ids[rows.start : rows.stop],
        np.pad(hidden.places[first:last] - rows.start * length, (0, idle)),
        np.pad(hidden.labels[first:last], (0, idle), constant_values=IGNORED),
    )
    tensors = [torch.from_numpy(array) for array in arrays]
    return MaskedTokens(*(tensor.pin_memory() if device.type == "cuda" else tensor for tensor in tensors))


# A corpus as sequences of equal length. Tokenised sentences are concatenated and then cut, so there is no padding and
# no token is lost. A sentence that is cut continues in the next sequence. The rest of an epoch begins the next epoch.

BLOCK = 1024
"""Number of sentences that are tokenised at once."""

Ids = NDArray[np.int64]


class Position(NamedTuple):
    """A position in the shuffled corpus, between two tokens."""

    block: int = 0
    """Number of the block of sentences, counted over all epochs."""
    token: int = 0
    """Index of the token in the block."""


START = Position()


def concatenate(sentences: Sequence[Tokens]) -> Ids:
    """Concatenate the tokens of all sentences, including special tokens, to (T,)."""
    return np.concatenate([sentence.ids for sentence in sentences])


def cut(blocks: Iterable[Ids], *, rows: int, length: int, start: Position) -> Iterator[tuple[Ids, Position]]:
    """Concatenate `blocks`, each (T,), and split them into batches (`rows`, `length`), starting at `start`.

    Yield each batch with the position at which the next batch starts. An incomplete last batch is dropped.
    """
    waiting: deque[Ids] = deque()
    at = start
    for ids in blocks:
        waiting.append(ids)
        while sum(map(len, waiting)) - at.token >= rows * length:
            batch = np.concatenate(waiting)[at.token : at.token + rows * length]
            at = Position(at.block, at.token + rows * length)
            while waiting and at.token >= len(waiting[0]):
                at = Position(at.block + 1, at.token - len(waiting.popleft()))
            yield batch.reshape(rows, length), at


def sentence_lengths(ids: Ids, cls: int) -> list[int]:
    """Return the lengths in tokens of the sentences, or parts of sentences, in sequences (N, L).

    A sentence begins at a token with the id `cls`.
    """
    begins = ids == cls
    begins[:, 0] = True
    ends: list[int] = np.append(np.flatnonzero(begins), ids.size).tolist()
    return [end - begin for begin, end in pairwise(ends)]
