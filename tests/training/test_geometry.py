"""Tests of alignment, uniformity, spectra, cosines and ranks of an encoder's vectors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import combinations
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from training.evaluation import geometry
from training.evaluation.pairs import STSB_DEV, Pair
from training.evaluation.vectors import EvaluationError

Floats = NDArray[np.float64]


def unit(rows: Floats) -> Floats:
    norms: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Floats = rows / norms
    return scaled


def drawn(n: int, dim: int, seed: int = 0) -> Floats:
    return unit(np.random.default_rng(seed).normal(size=(n, dim)) + 0.3)


def encoder(dim: int) -> Callable[[Sequence[str]], NDArray[np.float32]]:
    """Return an encoder with a random vector for each text, which is the same at every call."""

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        rows = [np.random.default_rng(list(text.encode())).normal(size=dim) + 0.3 for text in texts]
        return np.array(rows, dtype=np.float32).reshape(len(texts), dim)

    return encode


PAIRS = [Pair(f"a{i}", f"b{i}", [0.0, 4.0, 4.5, 5.0][i % 4]) for i in range(200)]
SENTENCES = [f"sentence {i}" for i in range(700)]


def test_alignment_and_uniformity_equal_the_official_code(goldens: Path) -> None:
    facts = json.loads((goldens / "align_uniform.json").read_text())["arrays"]
    with np.load(goldens / "align_uniform.npz") as archive:
        a, b, gold = unit(archive["emb1"]), unit(archive["emb2"]), archive["gold"]
    both = np.concatenate([a, b])
    assert {
        "align_all": geometry.alignment(a, b),
        "align_gold_gt4": geometry.alignment(a[gold > 4], b[gold > 4]),
        "align_gold_ge4": geometry.alignment(a[gold >= 4], b[gold >= 4]),
        "uniform_emb1": geometry.uniformity(a),
        "uniform_both_sides": geometry.uniformity(both),
    } == {
        name: pytest.approx(facts[f"official_{name}"]["value"], abs=1e-10)
        for name in ("align_all", "align_gold_gt4", "align_gold_ge4", "uniform_emb1", "uniform_both_sides")
    }


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = drawn(50, 6)
    kernel = [exp(-2 * float(((x - y) ** 2).sum())) for x, y in combinations(vectors, 2)]
    expected = log(sum(kernel) / len(kernel))
    for block in (1, 7, 49, 50, 1024):
        monkeypatch.setattr(geometry, "BLOCK", block)
        assert geometry.uniformity(vectors) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=12).filter(lambda counts: sum(counts) > 1))
def test_counts_are_vectors_that_are_there_as_often(counts: list[int]) -> None:
    vectors = drawn(len(counts), 5)
    assert geometry.uniformity(vectors, np.array(counts)) == pytest.approx(
        geometry.uniformity(np.repeat(vectors, counts, axis=0)), abs=1e-12
    )


def test_uniformity_of_one_point_and_of_opposite_points() -> None:
    point = unit(np.ones((5, 3)))
    assert geometry.uniformity(point) == pytest.approx(0, abs=1e-12)
    assert geometry.uniformity(np.array([[1.0, 0], [-1, 0]])) == pytest.approx(-8)
    assert geometry.uniformity(np.eye(4)) == pytest.approx(-4)
    with pytest.raises(EvaluationError, match="two vectors, got 1"):
        geometry.uniformity(point[:1])


@given(st.integers(2, 30), st.integers(1, 8), st.integers(0, 100))
def test_random_cosines_equal_those_of_all_pairs(n: int, dim: int, seed: int) -> None:
    vectors = drawn(n, dim, seed)
    cosines = [float(x @ y) for x, y in combinations(vectors, 2)]
    mean, deviation = geometry.random_cosines(vectors)
    assert mean == pytest.approx(np.mean(cosines), abs=1e-12)
    assert deviation == pytest.approx(np.std(cosines), abs=1e-6)


@given(st.integers(0, 100))
def test_turning_the_space_and_the_order_of_vectors_change_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = drawn(40, 6, seed)
    turned = vectors[rng.permutation(40)] @ np.linalg.qr(rng.normal(size=(6, 6)))[0]
    assert geometry.uniformity(turned) == pytest.approx(geometry.uniformity(vectors), abs=1e-10)
    assert geometry.random_cosines(turned) == pytest.approx(geometry.random_cosines(vectors), abs=1e-10)
    assert geometry.spectrum(turned).values == pytest.approx(geometry.spectrum(vectors).values, abs=1e-10)


def test_effective_rank_is_between_one_and_the_width() -> None:
    assert geometry.spectrum(np.eye(7)).effective_rank == pytest.approx(7)
    assert geometry.spectrum(unit(np.ones((9, 7)))).effective_rank == pytest.approx(1)
    halves = geometry.spectrum(np.diag([3.0, 1.0]))
    assert halves.values == pytest.approx([0.75, 0.25])
    assert halves.effective_rank == pytest.approx(exp(-0.75 * log(0.75) - 0.25 * log(0.25)))
    with pytest.raises(EvaluationError, match="no spectrum"):
        geometry.spectrum(np.zeros((4, 3)))


def test_histogram_counts_each_sentence_against_the_others_of_its_batch() -> None:
    vectors = drawn(600, 5)  # Two whole batches.
    counts = np.zeros(40)
    for batch in (vectors[:256], vectors[256:512]):
        for x, y in combinations(batch, 2):
            counts[min(int((float(x @ y) + 1) / 0.05), 39)] += 1
    assert geometry.cosine_histogram(vectors).share == pytest.approx(counts / counts.sum())
    assert sum(geometry.cosine_histogram(drawn(20, 5)).share) == pytest.approx(1)
    alike = geometry.cosine_histogram(unit(np.ones((30, 3)))).share
    assert alike == (*[0.0] * 39, 1.0)


def test_nearest_cosines_are_the_four_nearest_of_the_batch() -> None:
    vectors = drawn(70, 5)
    slow = []
    for batch in (vectors[:32], vectors[32:64]):
        for i, x in enumerate(batch):
            slow += sorted((float(x @ y) for j, y in enumerate(batch) if j != i), reverse=True)[:4]
    assert geometry.nearest_cosines(vectors, 32) == pytest.approx(np.reshape(slow, (64, 4)).mean(axis=0))
    larger, smaller = (geometry.nearest_cosines(vectors, size) for size in (64, 32))
    assert all(a > b for a, b in zip(larger, smaller, strict=True))
    for size in (4, 71):
        with pytest.raises(EvaluationError, match=f"a batch size of {size}, expected 5 to 70 sentences"):
            geometry.nearest_cosines(vectors, size)


def test_nearest_cosines_are_of_a_hundred_batches() -> None:
    """Use at most a hundred batches, as in GS-InfoNCE's Figure 1. Further sentences have no effect."""
    vectors = drawn(32 * 101, 5)
    assert geometry.nearest_cosines(vectors, 32) == geometry.nearest_cosines(vectors[: 32 * 100], 32)
    assert geometry.nearest_cosines(vectors, 32) != geometry.nearest_cosines(vectors[: 32 * 99], 32)


def test_the_rank_of_correlations_is_bounded_by_batch_and_width() -> None:
    vectors = drawn(300, 96).astype(np.float32).astype(np.float64)
    assert geometry.correlation_rank(vectors) == 96
    assert geometry.correlation_rank(vectors[:64]) == 63  # The vectors are centred.
    doubled = np.hstack([vectors[:, :40], 1 - 2 * vectors[:, :40]])
    assert geometry.correlation_rank(doubled) == 40
    still = np.hstack([vectors, np.full((300, 5), 0.1)])
    assert geometry.correlation_rank(still) == 96
    assert geometry.correlation_rank(np.ones((10, 3))) == 0


def test_evaluate_measures_pairs_and_sentences() -> None:
    encode = encoder(24)
    found = geometry.evaluate(encode, PAIRS, sentences=[*SENTENCES, SENTENCES[0]], seed=3)
    a, b = (unit(encode([getattr(pair, side) for pair in PAIRS]).astype(np.float64)) for side in "ab")
    golds = np.array([pair.gold for pair in PAIRS])
    assert found.alignment == pytest.approx(geometry.alignment(a[golds > 4], b[golds > 4]))
    assert found.alignment_at_least_4 == pytest.approx(geometry.alignment(a[golds >= 4], b[golds >= 4]))
    assert found.uniformity == pytest.approx(geometry.uniformity(np.concatenate([a, b])))
    sentences = unit(encode(SENTENCES).astype(np.float64))
    assert (found.random_cosine_mean, found.random_cosine_sd) == pytest.approx(geometry.random_cosines(sentences))
    assert found.spectrum.effective_rank == pytest.approx(geometry.spectrum(sentences).effective_rank)
    assert found.spectrum_centred.effective_rank > found.spectrum.effective_rank
    assert list(found.top4_cosine) == [32, 64, 128, 256, 512]
    assert list(found.top4_cosine.values()) == sorted(found.top4_cosine.values())
    assert found.top4_cosine[64] == pytest.approx(np.mean(found.nearest_cosines[64]))
    assert (found.correlation_rank, found.correlation_rank_of_64) == (24, 24.0)
    assert (found.pairs, found.sentences, found.dim, found.seed) == (200, 700, 24, 3)
    assert geometry.evaluate(encode, PAIRS, sentences=SENTENCES, seed=3) == found
    assert geometry.evaluate(encode, PAIRS, sentences=SENTENCES, seed=4).cosine_histogram != found.cosine_histogram


def test_without_sentences_those_of_the_pairs_count_once_each_and_json_holds_all() -> None:
    found = geometry.evaluate(encoder(8), [*PAIRS[:20], Pair("a0", "b1", 2.0)])
    assert (found.sentences, list(found.top4_cosine), found.correlation_rank_of_64) == (40, [32], None)
    plain = json.loads(json.dumps(asdict(found)))
    assert plain["spectrum"]["values"] == list(found.spectrum.values)
    assert plain["top4_cosine"] == {"32": found.top4_cosine[32]}


def test_what_a_run_watches_is_what_evaluate_says() -> None:
    repeated = [*PAIRS[:20], Pair("a0", "b1", 2.0)]
    found = geometry.evaluate(encoder(8), repeated)
    assert geometry.of_pairs(encoder(8), repeated) == {
        "alignment": found.alignment,
        "uniformity": found.uniformity,
        "effective_rank": found.spectrum.effective_rank,
    }


def test_what_can_t_be_measured_is_an_error() -> None:
    def broken(texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = encoder(4)(texts)
        vectors[0, 0] = np.nan
        return vectors

    with pytest.raises(EvaluationError, match="contain NaN or infinity"):
        geometry.evaluate(broken, PAIRS)
    with pytest.raises(EvaluationError, match="none of 1 pairs has a gold score above 4"):
        geometry.evaluate(encoder(4), [Pair("a", "b", 4.0)])
    with pytest.raises(EvaluationError, match="expected at least two"):
        geometry.evaluate(encoder(4), PAIRS, sentences=["one", "one"])
    with pytest.raises(EvaluationError, match="no spectrum"):
        geometry.evaluate(lambda texts: np.ones((len(texts), 4), dtype=np.float32), PAIRS)


@pytest.mark.slow
def test_minilm_lies_where_a_trained_encoder_does(test_data: Path) -> None:
    from models.encoder.encoder import Encoder

    # There are more sentences than in the largest batch of `TOP_BATCHES`.
    pairs = STSB_DEV.load(test_data)["dev"][:600]
    found = geometry.evaluate(Encoder.load("minilm", pooling="mean").encode, pairs)
    assert 0 < found.alignment < found.alignment_at_least_4 < 1
    assert -4 < found.uniformity < -2
    assert found.dim == 384 and found.correlation_rank >= 383
    assert found.correlation_rank_of_64 == 63
    assert list(found.top4_cosine) == list(geometry.TOP_BATCHES)
