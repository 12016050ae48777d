"""How the fastest runtime is found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models import bundle
from models.bundle import Bundle
from models.runtimes import REFERENCE, Pair, available, choice
from models.runtimes.base import Options, RuntimeUnavailable
from models.runtimes.choice import Choice, Measured, choose, compared, fastest, probes
from models.tokenizer import Tokenizer

OPTIONS = Options("cpu", 1)
QUICK, ROUGH, BROKEN = Pair("quick", "bf16"), Pair("rough", "int8"), Pair("broken", "fp16")
Vectors = NDArray[np.float32]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """Takes its time by the clock and gives its vectors."""

    def __init__(self, clock: Clock, seconds: float, vectors: Vectors) -> None:
        self.clock, self.seconds, self.vectors = clock, seconds, vectors
        self.calls = 0

    def __call__(self, texts: Sequence[str]) -> Vectors:
        self.clock.now += self.seconds
        self.calls += 1
        return self.vectors


def unit(*angles: float) -> Vectors:
    """A row for each angle, in a plane."""
    return np.array([[np.cos(angle), np.sin(angle)] for angle in angles], dtype=np.float32)


def contest(**others: tuple[float, Vectors]) -> Sequence[Measured]:
    """The reference at a tenth of a second a round against pairs of their own seconds and vectors."""
    clock, pairs = Clock(), {"quick": QUICK, "rough": ROUGH, "broken": BROKEN}
    encoders = {REFERENCE: Fake(clock, 0.1, unit(0, 1))}
    encoders |= {pairs[name]: Fake(clock, seconds, vectors) for name, (seconds, vectors) in others.items()}
    return compared(encoders, ["one", "two"], clock=clock)


def test_the_fastest_that_keeps_every_vector_wins() -> None:
    far_once = unit(0, 1.1)
    measured = contest(quick=(0.02, unit(0.001, 1)), rough=(0.001, far_once), broken=(0.0005, unit(0, np.nan)))
    pair = fastest(measured, among=[REFERENCE, QUICK, ROUGH, BROKEN])
    assert pair == QUICK
    rows = {(row["runtime"], row["precision"]): row for row in Choice(pair, measured).table()}
    assert {key: row["chosen"] for key, row in rows.items()} == {
        REFERENCE: False,
        QUICK: True,
        ROUGH: False,
        BROKEN: False,
    }
    assert rows[QUICK]["times_reference"] == pytest.approx(5) and rows[QUICK]["texts_per_second"] == pytest.approx(100)
    assert rows[QUICK]["why_not"] is None and rows[REFERENCE]["why_not"] == "slower"
    assert "cosine 0.99500 to onnxruntime fp32, below 0.999" in rows[ROUGH]["why_not"]
    assert "not finite" in rows[BROKEN]["why_not"]
    json.dumps(list(rows.values()), allow_nan=False)
    assert str(Choice(pair, measured)).startswith("quick bf16 (5.0 times as fast as onnxruntime fp32")


def test_only_what_was_asked_for_is_chosen() -> None:
    measured = contest(quick=(0.02, unit(0, 1)), rough=(0.2, unit(0, 1)))
    assert fastest(measured, among=[ROUGH]) == ROUGH
    whys = {row["runtime"]: row["why_not"] for row in Choice(ROUGH, measured).table()}
    assert whys == {"onnxruntime": "not asked for", "quick": "not asked for", "rough": None}
    with pytest.raises(RuntimeUnavailable, match="none of broken fp16 gives the vectors"):
        fastest(measured, among=[BROKEN])


@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=2),
    st.lists(st.sampled_from([0.0, 0.01, 0.2, np.nan]), min_size=2, max_size=2),
)
def test_law_nothing_unfaithful_is_chosen_and_nothing_faithful_is_quicker(
    seconds: list[float], turned: list[float]
) -> None:
    measured = contest(quick=(seconds[0], unit(turned[0], 1)), rough=(seconds[1], unit(0, 1 + turned[1])))
    rows = {row.pair: row for row in measured}
    chosen = rows[fastest(measured, among=list(rows))]
    assert chosen.least_cosine is not None and chosen.least_cosine >= bundle.GOLDEN_COSINE
    quicker = [row for row in measured if (row.times_reference or 0) > (chosen.times_reference or 0)]
    assert not any(row.faithful for row in quicker)


def test_slow_encoders_have_two_rounds_and_quick_ones_all() -> None:
    for seconds, rounds in ((10, 2), (0.001, choice.ROUNDS)):
        encoder = Fake(clock := Clock(), seconds, unit(0))
        compared({REFERENCE: encoder}, ["one"], clock=clock)
        assert encoder.calls == 1 + rounds


@pytest.fixture(scope="module")
def opened(tiny_bundle: Path) -> Bundle:
    return bundle.load(tiny_bundle)


def test_probes_are_fixed_and_of_many_lengths(opened: Bundle) -> None:
    texts = probes(opened)
    assert texts == probes(opened) and len(texts) == choice.PROBES
    words = [len(text.split()) for text in texts]
    assert np.mean(words) == pytest.approx(choice.MEAN_WORDS, rel=0.05)
    assert min(words) < 10 and max(words) > 60
    tokens = Tokenizer(opened.tokenizer_file, max_length=opened.manifest.max_length).encode(texts)
    assert max(map(len, tokens)) == opened.manifest.max_length


def test_the_machine_itself_is_measured(opened: Bundle) -> None:
    made = choose(opened, OPTIONS)
    pairs = available(opened, OPTIONS)
    if len(pairs) == 1:
        assert made == Choice(REFERENCE)
        return
    assert {row.pair for row in made.measured} == set(pairs)
    assert made.pair in [row.pair for row in made.measured if row.faithful]
    assert made.measured[0].pair == REFERENCE and made.measured[0].times_reference == 1


def test_a_pair_that_does_not_run_is_a_row_that_says_why(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "available", lambda *_, **__: [REFERENCE, Pair("onnxruntime", "int4")])
    measured = choice.measure(opened, OPTIONS)
    assert [row.pair for row in measured] == [REFERENCE, Pair("onnxruntime", "int4")]
    why = Choice(REFERENCE, measured).table()[1]["why_not"]
    assert why == "does not run: no int4 graph; there is fp32", "not where the bundle lies"
