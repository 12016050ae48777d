"""Streams of the sentences of a corpus and of their pooled vectors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import TextIO

import torch
from torch import Tensor
from tqdm import tqdm

from models.encoder.encoder import Encoder
from training.corpus.corpus import Corpus
from training.progress import LINE_EVERY

ENCODED_AT_ONCE = 1024
"""Minimum sentences encoded together: enough to form batches of similar length with little padding."""


def pooled_batches(
    encoder: Encoder, corpus: Corpus, *, size: int, epochs: int = 1, seed: int, stream: TextIO
) -> Iterator[Tensor]:
    """Yield batches (size, D) of vectors without dropout, float32 on the CPU.

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
    """Yield shuffled batches of sentences, with progress: a bar on a terminal, lines elsewhere.

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
