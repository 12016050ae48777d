"""Fixtures: a corpus and a run that trains in a second."""

from __future__ import annotations

import io
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.training.shaken import shaken
from training import run
from training.checkpoints import checkpoint
from training.checkpoints.publish import Outcome
from training.config import RunConfig, from_preset
from training.studies.soup import Ingredient

SUBJECTS = ["the man", "a woman", "the old dog", "a small cat", "the teacher", "a student", "the bird", "a writer"]
VERBS = ["can see", "will read", "did find", "could hear", "does make", "would take", "may write about"]
OBJECTS = ["the river", "a red house", "the long book", "a paper star", "the city market", "a hot fire", "the rain"]
PLACES = ["in the morning", "on the mountain", "near the sea", "this evening", "at the bank", "by the window"]
WORDS = ("man", "woman", "dog", "cat", "bird", "fish", "horse", "guitar", "river", "city")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Use one thread, because tiny matrices gain nothing from more, and sums have the same order in every process."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` seeds every kind of device, which takes a millisecond per test.
        torch.default_generator.manual_seed(0)
        yield


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """Return 240 different sentences of words in the vocabulary of `tiny_backbone`."""
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


@pytest.fixture(scope="session")
def stsb_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write STS-B in SentEval's layout, without other tasks. It has few different sentences, so encoding is fast."""
    data = tmp_path_factory.mktemp("data")
    folder = data / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    for part, pairs in (("dev", 1500), ("test", 1379)):
        rows = []
        for i in range(pairs):
            a, b = WORDS[i % 10], WORDS[(i // 10) % 10]
            score = 5 - min(5, abs(i % 10 - (i // 10) % 10))
            rows.append(f"g\tf\ty\t{i}\t{score}\tthe {a} can see\ta {b} can see\n")
        (folder / f"sts-{part}.csv").write_text("".join(rows))
    return data


def configured(backbone: Path, corpus: Path, folder: Path, /, name: str = "one", **changes: Any) -> RunConfig:
    """Return a run of 14 steps on the tiny backbone in `folder`, with changed fields."""
    defaults: dict[str, Any] = {
        "corpus": (str(corpus),),
        "batch_size": 16,
        "max_steps": 14,
        "eval_every": 5,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "device": "cpu",
        "out": str(folder / "artifacts" / name),
        "run": str(folder / "runs" / name),
    }
    return from_preset("simcse", backbone=str(backbone)).override({**defaults, **changes})


@pytest.fixture
def make_config(tiny_backbone: Path, corpus_file: Path, tmp_path: Path) -> Callable[..., RunConfig]:
    """Return a function that makes runs in the test's folder (see `configured`)."""
    return partial(configured, tiny_backbone, corpus_file, tmp_path)


def fit(config: RunConfig, **how: bool) -> tuple[Outcome, str]:
    """Train a run, and return its outcome and output."""
    said = io.StringIO()
    outcome = run.fit(config, said, **how)
    return outcome, said.getvalue()


@pytest.fixture
def fitted() -> Callable[..., tuple[Outcome, str]]:
    return fit


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record `checkpoint` before each checkpoint is written. A test may record further events."""
    told: list[str] = []
    save = checkpoint.save

    def saved(*arguments: Any, **named: Any) -> None:
        told.append("checkpoint")
        save(*arguments, **named)

    monkeypatch.setattr(checkpoint, "save", saved)
    return told


class Ended(NamedTuple):
    """A run that ended without interruption."""

    config: RunConfig
    outcome: Outcome
    said: str


@pytest.fixture(scope="session")
def ended(tiny_backbone: Path, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Train a run that all tests may read. `copied` returns a copy that may be changed."""
    config = configured(tiny_backbone, corpus_file, tmp_path_factory.mktemp("ended"))
    return Ended(config, *fit(config))


@pytest.fixture
def copied(ended: Ended, tmp_path: Path) -> RunConfig:
    """Return a copy of the run `ended` in the test's folder."""
    config = replace(ended.config, run=str(tmp_path / "runs" / "copied"))
    shutil.copytree(ended.config.run, config.run)
    return config


@pytest.fixture
def listening_to_ctrl_c() -> Iterator[None]:
    """Accept SIGINT, which a shell ignores in background processes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def ingredients(tiny_backbone: Path) -> list[Ingredient]:
    """Return three encoders that were tuned from the same initial weights."""
    return [Ingredient(f"tuned-{seed}", shaken(tiny_backbone, seed), None) for seed in range(3)]
