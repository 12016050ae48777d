"""Fraction of the negatives that DCLR's weighting removes at a threshold phi, with different teachers.

python -m benchmarks.removed_negatives NAME=ENCODER:POOLING … --corpus wiki1m.txt

Each teacher encodes the same sentences as in training: at most 32 tokens, without dropout. Every ordered pair of
sentences counts as a negative, as if all sentences were in one batch.
"""

from __future__ import annotations

import argparse
import json
from itertools import chain, islice
from pathlib import Path

import numpy as np

from benchmarks.surroundings import RESULTS, surroundings, write
from models.encoder.encoder import Encoder
from training.data.corpus import open_corpus
from training.evaluation.vectors import unit_vectors

TOKENS = 32
THRESHOLDS = tuple(round(0.3 + 0.05 * step, 2) for step in range(14))
TO = RESULTS / "encoders" / "removed_negatives.json"


def main() -> None:
    """Measure each teacher, print its fractions and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teachers", nargs="+", metavar="NAME=ENCODER:POOLING")
    parser.add_argument("--corpus", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--sentences", type=int, default=1280, metavar="N")
    parser.add_argument("--to", type=Path, default=TO, metavar="FILE")
    options = parser.parse_args()
    corpus = open_corpus(tuple(options.corpus), held_out=0)
    sentences = list(islice(chain.from_iterable(corpus.batches(64, seed=0)), options.sentences))
    found = {}
    for each in options.teachers:
        name, _, source = each.partition("=")
        encoder, _, pooling = source.partition(":")
        found[name] = measured(Encoder.load(encoder, pooling=pooling or None, max_length=TOKENS), sentences)
        print(name, json.dumps(found[name]))
    given = f"{' '.join(options.teachers)} --corpus {' '.join(Path(file).name for file in options.corpus)}"
    command = f"python -m benchmarks.removed_negatives {given} --sentences {options.sentences}"
    facts = {"sentences": len(sentences), "corpus": corpus.census.digest}
    write(options.to, {"command": command, **surroundings(), **facts, "teachers": found})


def measured(encoder: Encoder, sentences: list[str]) -> dict[str, object]:
    """Return mean and deviation of the cosines of all ordered pairs, and the number that reach each threshold."""
    unit = unit_vectors(encoder.eval().encode, sentences)
    cosines = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
    removed = {str(phi): int((cosines >= phi).sum()) for phi in THRESHOLDS}
    return {"negatives": cosines.size, "mean": cosines.mean(), "deviation": cosines.std(), "removed": removed}


if __name__ == "__main__":
    main()
