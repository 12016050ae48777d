"""Controllable engines for tests, and a model that loads one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.bundle.tokenizer import Tokens
from serving.inference.engine import Embedded, Engine, EngineOptions, Model
from serving.inference.engines import ENGINES
from serving.inference.fake_engine import FakeEngine
from tests.conftest import PATIENCE


class Gate(FakeEngine):
    """Engine that waits for permission. A text of the single word `poison` makes it fail or return NaN."""

    def __init__(self, failure: str = "") -> None:
        self.open = threading.Event()
        self.failure = failure
        self.embedded: list[int] = []

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        assert self.open.wait(PATIENCE)
        self.embedded.append(len(batch))
        result = super().embed(batch)
        poison = self.tokenize(["poison"], "right")[0].ids
        if self.failure and any(np.array_equal(one.ids, poison) for one in batch):
            if self.failure == "raise":
                raise RuntimeError("out of memory")
            result.vectors[:] = np.nan
        return result


def model(load: Callable[[EngineOptions], Engine], **manifest: Any) -> Model:
    fake = ENGINES["fake"](Path())
    return Model(replace(fake.manifest, **manifest), load)
