"""`python -m serving` with a second fake encoder: the bundle `other` negates the vectors of the first.

It has its own fingerprint and name, so that tests can re-embed a corpus without a costly model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from models.bundle.tokenizer import Tokens
from models.runtimes.base import Floats
from serving.commands.loading import begin
from serving.commands.serve import serve
from serving.inference import fake_engine
from serving.inference.engine import Embedded, Model
from serving.inference.engines import ENGINES
from serving.jobs import jobs
from serving.operations import failpoints
from serving.settings import read_settings

FIRST, SECOND = "fake", "other"
OPTIONS = ("--engine", "fake", "--bundle", FIRST, "--bundle", SECOND)
FINGERPRINTS = {FIRST: "fake-1", SECOND: "fake-2"}


class Turned(fake_engine.FakeEngine):
    """The fake engine with negated vectors."""

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        """Embed a batch with negated vectors."""
        vectors, norms = super().embed(batch, alone=alone)
        return Embedded(-vectors, norms)


def opened(folder: Path) -> Model:
    """Open a bundle by its name alone."""
    model = fake_engine.open_bundle(folder)
    if folder.name != SECOND:
        return model
    golden = [replace(one, vector=[-x for x in one.vector]) for one in model.manifest.golden]
    manifest = replace(model.manifest, name=SECOND, fingerprint=FINGERPRINTS[SECOND], golden=golden)
    return replace(model, manifest=manifest, load=lambda _: Turned())


def embedded(texts: Sequence[str], fingerprint: str) -> Floats:
    """Return the vectors (N, D) of the encoder with that fingerprint."""
    engine = Turned() if fingerprint == FINGERPRINTS[SECOND] else fake_engine.FakeEngine()
    if not texts:
        return np.empty((0, fake_engine.DIM), np.float32)
    return engine.embed(engine.tokenize(texts, "right")).vectors


if __name__ == "__main__":
    failpoints.arm(os.environ)
    ENGINES["fake"] = opened
    jobs.MAX_STARTS = sys.maxsize  # The trials kill the server so often that a job may make no progress.
    sys.exit(serve(begin(read_settings(sys.argv[1:]))))
