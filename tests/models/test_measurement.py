"""Tests of the measurement of runtimes: rounds, probes, and the similarity of vectors to the reference's."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr

from models.bundle import bundle
from models.bundle.bundle import Bundle
from models.bundle.tokenizer import Tokenizer
from models.runtimes import REFERENCE, Pair, measurement
from models.runtimes.base import Options
from models.runtimes.choice import Choice
from models.runtimes.measurement import PROBES, ROUNDS, Measured, compared, probes, rank_loss

OPTIONS = Options("cpu", 1)
A, B, C = Pair("a", "bf16"), Pair("b", "bf16"), Pair("c", "bf16")
Vectors = NDArray[np.float32]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """Encoder with given durations, of which the last repeats, and given vectors."""

    def __init__(self, clock: Clock, seconds: Sequence[float], vectors: Vectors) -> None:
        self.clock, self.seconds, self.vectors = clock, list(seconds), vectors
        self.calls = 0

    def __call__(self, texts: Sequence[str]) -> Vectors:
        self.clock.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        self.calls += 1
        return self.vectors


def unit(*angles: float) -> Vectors:
    """Return a unit vector in a plane for each angle."""
    return np.array([[np.cos(angle), np.sin(angle)] for angle in angles], dtype=np.float32)


def drawn(rows: int, seed: int = 0) -> Vectors:
    """Return random unit vectors (rows, 8)."""
    vectors = np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


SAME = drawn(6)


def contest(reference: float, *others: Sequence[float], **limits: float) -> tuple[list[Measured], list[Fake]]:
    """Compare the reference with encoders of equal vectors and these durations."""
    clock = Clock()
    fakes = [Fake(clock, seconds, SAME) for seconds in ([reference], *others)]
    pairs = dict(zip((REFERENCE, A, B, C), fakes, strict=False))

    def opener(fake: Fake) -> Callable[[], Fake]:
        return lambda: fake

    texts = ["one"] * len(SAME)
    rows = compared({pair: opener(fake) for pair, fake in pairs.items()}, texts, clock=clock, **limits)  # type: ignore[arg-type]
    return rows, fakes


def test_speeds_are_told_beside_the_reference() -> None:
    reference, other = contest(0.1, [0.5, 0.5, 0.02])[0]
    assert (reference.pair, other.pair) == (REFERENCE, A)
    assert [reference.texts_per_second, reference.times_reference] == pytest.approx([20, 1])
    assert [other.texts_per_second, other.times_reference] == pytest.approx([100, 5])
    assert [other.least_cosine, other.rank_loss] == pytest.approx([1, 0], abs=1e-6)
    assert other.faithful


def test_each_pair_has_all_rounds_until_the_time_is_up_and_then_two() -> None:
    _, (_, quick, slow, late) = contest(0.1, [0.1], [0.01, 0.01, 0.01, 3], [0.1])
    called = 2  # One run computes the vectors, and one run uses shapes that are new.
    assert quick.calls == called + ROUNDS
    assert slow.calls == called + 2
    assert late.calls == called + 2
    assert contest(10, [10], rounds=9, seconds=np.inf)[1][1].calls == called + 9


def test_no_more_than_two_graphs_are_in_memory() -> None:
    clock, alive = Clock(), weakref.WeakSet[Fake]()
    most: list[int] = []

    def load() -> Fake:
        fake = Fake(clock, [0.1], SAME)
        alive.add(fake)
        most.append(len(alive))
        return fake

    compared(dict.fromkeys((REFERENCE, A, B, C), load), ["one"] * len(SAME), clock=clock)
    assert most == [1, 2, 2, 2]


def test_vectors_that_are_no_numbers_are_told_as_none() -> None:
    clock = Clock()
    graphs = {
        REFERENCE: lambda: Fake(clock, [0.1], unit(0, 1)),
        A: lambda: Fake(clock, [0.01], unit(0, np.nan)),
    }
    _, broken = compared(graphs, ["a", "b"], clock=clock)
    assert (broken.least_cosine, broken.rank_loss, broken.faithful) == (None, None, False)


@given(st.integers(3, 20), st.integers(0, 100), st.floats(0, 2))
def test_law_the_rank_loss_is_spearmans(rows: int, seed: int, noise: float) -> None:
    reference = drawn(rows, seed)
    moved = reference + noise * drawn(rows, seed + 1)
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    above = np.triu_indices(rows, k=1)
    ours, theirs = ((each.astype(np.float64) @ each.T)[above].round(6) for each in (moved, reference))
    expected = 100 * (1 - float(spearmanr(ours, theirs).statistic))
    assert rank_loss(moved, reference) == pytest.approx(expected, abs=1e-9)
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((8, 8)))[0].astype(np.float32)
    assert rank_loss(reference @ turn, reference) == pytest.approx(0, abs=0.1), "no similarity changes"


def test_equal_vectors_rank_nothing() -> None:
    equal = np.repeat(unit(0.3), 5, axis=0)
    assert rank_loss(equal, equal) == 0, "nothing to lose"
    assert rank_loss(equal, unit(0, 0.1, 0.3, 0.6, 1.0)) == 100, "everything is lost"
    assert rank_loss(unit(0), unit(1)) == 0 == rank_loss(unit(0, 1), unit(0, 2))


@pytest.fixture(scope="module")
def opened(tiny_bundle: Path) -> Bundle:
    return bundle.load(tiny_bundle)


def test_probes_are_fixed_and_of_many_lengths(opened: Bundle) -> None:
    texts = probes(opened)
    assert texts == probes(opened) and len(texts) == PROBES
    words = [len(text.split()) for text in texts]
    assert np.mean(words) == pytest.approx(measurement.MEAN_WORDS, rel=0.05)
    assert min(words) < 10 and max(words) > 60
    tokens = Tokenizer(opened.tokenizer_file, max_length=opened.manifest.max_length).encode(texts)
    assert max(map(len, tokens)) == opened.manifest.max_length


def test_a_pair_that_does_not_run_is_a_row_that_says_why(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "available", lambda *_, **__: [Pair("onnxruntime", "int4"), REFERENCE])
    measured = measurement.measure(opened, OPTIONS)
    assert [row.pair for row in measured] == [REFERENCE, Pair("onnxruntime", "int4")]
    why = Choice(REFERENCE, measured).table()[1]["why_not"]
    assert why == "does not run: no int4 graph; available: fp32", "not where the bundle lies"
