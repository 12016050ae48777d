"""Interface of a post-processing: a transform that is fitted to the pooled vectors of a frozen encoder.

The vectors are a stream of batches, computed from the sentences of a corpus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TextIO, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from models.encoder.encoder import Encoder
from models.encoder.transform import Transform
from models.errors import Refused
from training.checkpoints.progress import LINE_EVERY
from training.data.corpus import Corpus

LAST = 100
"""Number of final batches whose mean loss is reported."""
MOST_RATE = 1e30
"""Maximum learning rate.

In its first step, Adam computes ten times the learning rate, and this number must be representable in float32.
"""


class PostprocessError(Refused):
    """A transform can't be fitted. The message is one line and suggests what to do."""


@dataclass(frozen=True)
class Fitted:
    """A fitted transform, with figures of its fit."""

    transform: Transform
    facts: Mapping[str, float]


P = TypeVar("P")


@dataclass(frozen=True, kw_only=True)
class Postprocess(Generic[P]):
    """An entry of the table of post-processings: a fit function with the parameters of its paper."""

    summary: str
    citation: str
    """BibTeX of the paper, for the model card."""
    params: P
    """Published parameters, in a frozen dataclass."""
    fit: Callable[[Encoder, Corpus, P, int, TextIO], Fitted]
    """Function that fits a transform to the vectors that the encoder computes from the corpus.

    The seed determines the order of the corpus. Random numbers are from torch's own generator. Progress goes to the
    stream.
    """

    def apply(self, encoder: Encoder, corpus: Corpus, params: P, *, seed: int, stream: TextIO) -> Fitted:
        """Fit the transform and attach it to the encoder.

        The encoder's Matryoshka widths are removed, because the new coordinates have no prefixes that were trained.

        Raises:
            PostprocessError: the encoder already has a transform, or the transform can't be fitted.
        """
        if encoder.transform is not None:
            raise PostprocessError(
                f"the encoder already has a transform ({encoder.transform.kind}): use the encoder from before "
                "that transform"
            )
        torch.manual_seed(seed)
        fitted = self.fit(encoder, corpus, params, seed, stream)
        encoder.attach(fitted.transform)
        for name in ("matryoshka_dimensions", "is_matryoshka"):  # They describe prefixes of the old coordinates.
            if hasattr(encoder.backbone.config, name):
                delattr(encoder.backbone.config, name)
        return fitted


def check_training(params: Any) -> None:
    """Check the learning rate and the batch size.

    The learning rate is limited, so that Adam's first step is finite. A batch needs two sentences to have a variance.

    Raises:
        ValueError: the learning rate is not above 0, or is above `MOST_RATE`, or the batch size is below 2.
    """
    check_above_zero(params, "learning_rate")
    if params.learning_rate > MOST_RATE:
        raise ValueError(f"learning_rate: {params.learning_rate} is above {MOST_RATE:g}")
    if params.batch_size < 2:
        raise ValueError(f"batch_size: {params.batch_size} is too small: one sentence has no variance")


def check_sentences(corpus: Corpus, least: int, purpose: str, reason: str) -> int:
    """Return the number of distinct sentences in the corpus.

    Raises:
        PostprocessError: there are fewer than `least`. The message contains `purpose` and `reason`.
    """
    sentences = corpus.census.sentences
    if sentences < least:
        raise PostprocessError(
            f"{corpus.name}: {sentences} different sentences are too few {purpose}: at least {least} are needed{reason}"
        )
    return sentences


def check_above_zero(params: Any, *names: str) -> None:
    """Check that each named field is None or above 0.

    Raises:
        ValueError: a field is not above 0; the message names the field.
    """
    for name in names:
        value = getattr(params, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name}: {value} is not above 0")


# Streams of the sentences of a corpus, and of their pooled vectors.

ENCODED_AT_ONCE = 1024
"""Minimum number of sentences that are encoded together, so that batches of similar length need little padding."""


def pooled_batches(
    encoder: Encoder, corpus: Corpus, *, size: int, epochs: int = 1, seed: int, stream: TextIO
) -> Iterator[Tensor]:
    """Encode shuffled sentences without dropout, and yield batches (size, D) of float32 vectors on the CPU.

    The last batch of an epoch may be smaller.
    """
    chunk = size * -(-ENCODED_AT_ONCE // size)
    for sentences in sentence_batches(corpus, size=chunk, epochs=epochs, seed=seed, stream=stream):
        vectors = torch.from_numpy(encoder.encode(sentences))
        for start in range(0, len(vectors), size):
            yield vectors[start : start + size]


def sentence_batches(
    corpus: Corpus, *, size: int, least: int = 1, epochs: int = 1, seed: int, stream: TextIO
) -> Iterator[list[str]]:
    """Yield shuffled batches of sentences, and display the progress: a bar on a terminal, plain lines elsewhere.

    The last batch of an epoch may be smaller. It is left out if it has fewer than `least` sentences.
    """
    batches = corpus.batches(size, seed=seed, least=least)
    count = epochs * corpus.batches_per_epoch(size, least=least)
    total = epochs * corpus.census.sentences
    done, said = 0, time.monotonic()
    with tqdm(total=total, unit="sentence", file=stream, disable=not stream.isatty()) as bar:
        for batch in islice(batches, count):
            yield batch
            done += len(batch)
            bar.update(len(batch))
            if bar.disable and time.monotonic() - said >= LINE_EVERY:
                said = time.monotonic()
                print(f"{done} of {total} sentences", file=stream, flush=True)
