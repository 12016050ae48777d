"""A corpus and a run small enough to train in a second."""

from __future__ import annotations

import io
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from training import run
from training.config import RunConfig, from_preset
from training.publish import Outcome

SUBJECTS = ["the man", "a woman", "the old dog", "a small cat", "the teacher", "a student", "the bird", "a writer"]
VERBS = ["can see", "will read", "did find", "could hear", "does make", "would take", "may write about"]
OBJECTS = ["the river", "a red house", "the long book", "a paper star", "the city market", "a hot fire", "the rain"]
PLACES = ["in the morning", "on the mountain", "near the sea", "this evening", "at the bank", "by the window"]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny matrices gain nothing from more, and sums keep their order in every process."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """240 different ones, of words that `tiny_backbone` knows."""
    draw = random.Random(0)
    every = [
        f"{subject} {verb} {thing} {place} .".capitalize()
        for subject in SUBJECTS
        for verb in VERBS
        for thing in OBJECTS
        for place in PLACES
    ]
    return draw.sample(every, 240)


@pytest.fixture(scope="session")
def corpus_file(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "sentences.txt"
    file.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def make_config(tiny_backbone: Path, corpus_file: Path, tmp_path: Path) -> Callable[..., RunConfig]:
    """A run of 14 steps on the tiny backbone in a folder of its own; keywords override."""

    def make(name: str = "one", **changes: Any) -> RunConfig:
        defaults: dict[str, Any] = {
            "corpus": (str(corpus_file),),
            "batch_size": 16,
            "max_steps": 14,
            "eval_every": 5,
            "learning_rate": 1e-3,
            "precision": "fp32",
            "device": "cpu",
            "out": str(tmp_path / "artifacts" / name),
            "run": str(tmp_path / "runs" / name),
        }
        return from_preset("simcse", backbone=str(tiny_backbone)).override({**defaults, **changes})

    return make


def fit(config: RunConfig, *, resume: bool = False) -> tuple[Outcome, str]:
    """A run and what it said."""
    said = io.StringIO()
    outcome = run.fit(config, said, resume=resume)
    return outcome, said.getvalue()


@pytest.fixture
def fitted() -> Callable[..., tuple[Outcome, str]]:
    return fit


@pytest.fixture
def listening_to_ctrl_c() -> Iterator[None]:
    """A shell starts what it puts in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
