"""Groups of sentences more and less alike, for a teacher to grade: one and a neighbour, each with its variants."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from models.disk import replacing
from training.corpus import CorpusError, is_grouped, lines
from training.evaluation.vectors import Encode, unit_vectors

REACH = 8
"""A neighbour is drawn from so many of the nearest."""
KEPT = 0.75
"""The share of words that a shortened sentence has, on average."""


@dataclass(frozen=True)
class Sentence:
    """One of the corpus, and what was given or made to stand beside it."""

    text: str
    variants: tuple[str, ...]


def write(
    corpus: Path,
    groups: Path,
    encode: Encode,
    *,
    paraphrases: Path | None = None,
    seed: int = 0,
) -> int:
    """A group for each different sentence of `corpus`; how many.

    A group is the sentence, its line of `paraphrases`, and the sentence shortened; then the same of a sentence drawn
    from those that `encode` has nearest to it.

    Raises:
        CorpusError: a file can't be read, the one to write is no .tsv, the two have not as many lines, or there are
            not enough sentences; nothing is written.
        EvaluationError: `encode` gives vectors that can't be compared.
        OSError: the groups can't be written.
    """
    if not is_grouped(groups) or groups.suffix != ".tsv":
        raise CorpusError(f"{groups}: groups are kept in a file whose name ends with .tsv")
    draw = random.Random(seed)
    sentences = list(_sentences(corpus, paraphrases, draw))
    if len(sentences) <= REACH:
        raise CorpusError(f"{corpus}: {len(sentences)} different sentences, and more than {REACH} are needed")
    near = _nearest(unit_vectors(encode, [each.text for each in sentences]).astype(np.float32))
    with replacing(groups) as beside, beside.open("w", encoding="utf-8") as written:
        for sentence, row in zip(sentences, near, strict=True):
            neighbour = sentences[draw.choice(row)]
            members = (sentence.text, *sentence.variants, neighbour.text, *neighbour.variants)
            written.write("\t".join(members) + "\n")
    return len(sentences)


def shortened(text: str, draw: random.Random) -> str:
    """Its words, each with probability `KEPT`, in their order; at least one goes and one stays, if there are two."""
    words = text.split()
    kept = [place for place in range(len(words)) if draw.random() < KEPT] or [0]
    if len(kept) == len(words) > 1:
        kept.pop(draw.randrange(len(kept)))
    return " ".join(words[place] for place in kept)


def _sentences(corpus: Path, paraphrases: Path | None, draw: random.Random) -> Iterator[Sentence]:
    seen = set()
    for text, paraphrase in _pairs(corpus, paraphrases):
        if text and text not in seen:
            seen.add(text)
            yield Sentence(text, tuple(filter(None, (paraphrase, shortened(text, draw)))))


def _pairs(corpus: Path, paraphrases: Path | None) -> Iterator[tuple[str, str]]:
    """Each sentence and its paraphrase, runs of white space made one space; no paraphrase is an empty one."""
    if paraphrases is None:
        yield from ((_plain(line), "") for line in lines([corpus]))
        return
    for text, paraphrase in zip_longest(lines([corpus]), lines([paraphrases])):
        if text is None or paraphrase is None:
            longer, shorter = (corpus, paraphrases) if paraphrase is None else (paraphrases, corpus)
            raise CorpusError(
                f"{longer} has more lines than {shorter}: a paraphrase stands in the line of its sentence"
            )
        yield _plain(text), _plain(paraphrase)


def _plain(line: str) -> str:
    return " ".join(line.split())


def _nearest(unit: NDArray[np.float32]) -> Sequence[list[int]]:
    """The rows of the `REACH` nearest to each, itself left out."""
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit)
    _, rows = index.search(unit, REACH + 1)
    return [[int(row) for row in found if row != own][:REACH] for own, found in enumerate(rows)]
