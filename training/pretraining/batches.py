"""Batches of questions, made ready while the last one trains."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from models.tokenizer import Tokens
from training.corpus.corpus import Corpus
from training.machine.devices import Devices
from training.pretraining.config import PretrainConfig
from training.pretraining.masking import Masked, masked
from training.pretraining.model import NO_ANSWER, MaskedLM, Questions
from training.pretraining.sequences import Position, end_to_end, parts, sequences

GRANULE = {"cuda": 512}
"""To a multiple of so many the questions of a chunk are filled up, on other devices not at all: a step is recorded for
each number of them, and they vary by as many as a word has tokens and a sequence has [CLS]."""
HELD_OUT_SEED = 0
"""Whatever the seed of the run: the same tokens are hidden, so that runs compare."""


@dataclass(frozen=True)
class Batch:
    """Sequences of one step, and the questions of those that this process answers."""

    chunks: Sequence[Questions]
    """What goes through the model at once, each"""
    hidden: int
    """Tokens hidden in the whole batch"""
    lengths: Sequence[int]
    """Tokens of the sentences, or parts of one, of the whole batch"""
    position: Position
    """Where in the corpus the next batch begins"""


class Batches:
    """What a run reads, step by step, and what it is judged on."""

    def __init__(self, config: PretrainConfig, model: MaskedLM, corpus: Corpus, devices: Devices) -> None:
        self._config = config
        self._model = model
        self._corpus = corpus
        self._devices = devices

    def after(self, step: int, position: Position) -> Iterator[Batch]:
        """Those behind `step`, which ended at `position`. What is hidden depends on the seed and the step alone."""
        config = self._config
        packed = sequences(
            self._corpus,
            self._encode,
            rows=config.batch_size,
            length=config.max_length,
            seed=config.seed,
            start=position,
        )
        for number, (ids, end) in enumerate(packed, start=step + 1):
            hidden = self._masked(ids, np.random.default_rng((config.seed, number)))
            chunks = self._chunks(hidden, self._devices.rows(len(ids)))
            yield Batch(chunks, len(hidden.labels), parts(ids, self._model.vocabulary.cls), end)

    def held_out(self) -> list[Questions]:
        """The held-out sentences in their order, packed; the last sequence is as long as what is left."""
        ids, length = end_to_end(self._encode(self._corpus.census.watched)), self._config.max_length
        rng = np.random.default_rng(HELD_OUT_SEED)
        whole, rest = np.split(ids, [len(ids) - len(ids) % length])
        packed = [each for each in (whole.reshape(-1, length), rest[None]) if each.size]
        return [chunk for each in packed for chunk in self._chunks(self._masked(each, rng), range(len(each)))]

    def _encode(self, sentences: Sequence[str]) -> list[Tokens]:
        """A [CLS] that a text speaks of is a word that nobody knows, and begins no sentence."""
        vocabulary = self._model.vocabulary
        found = self._model.encoder.tokenizer.encode(sentences, max_length=sys.maxsize)
        for tokens in found:
            said = tokens.ids[1:]
            said[said == vocabulary.cls] = vocabulary.unknown
        return found

    def _masked(self, ids: np.ndarray, rng: np.random.Generator) -> Masked:
        return masked(ids, self._model.vocabulary, share=self._config.share, rng=rng)

    def _chunks(self, hidden: Masked, rows: range) -> list[Questions]:
        """Those rows, in parts of what may go through the model at once."""
        size = self._config.chunk_size or self._config.batch_size
        starts = rows[::size]
        return [_questions(hidden, range(s, min(s + size, rows.stop)), self._devices.device) for s in starts]


def _questions(hidden: Masked, rows: range, device: torch.device) -> Questions:
    """The questions in some rows; for CUDA in pinned memory, from which a copy need not be waited for.

    And so many there, by questions without an answer, that most steps have as many as the last one.
    """
    length = hidden.ids.shape[1]
    first, last = np.searchsorted(hidden.places, (rows.start * length, rows.stop * length))
    idle = -(last - first) % GRANULE.get(device.type, 1)
    arrays = (
        hidden.ids[rows.start : rows.stop],
        np.pad(hidden.places[first:last] - rows.start * length, (0, idle)),
        np.pad(hidden.labels[first:last], (0, idle), constant_values=NO_ANSWER),
    )
    tensors = [torch.from_numpy(array) for array in arrays]
    return Questions(*(tensor.pin_memory() if device.type == "cuda" else tensor for tensor in tensors))
