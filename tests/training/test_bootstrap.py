from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom, spearmanr

from training.evaluation.bootstrap import (
    Comparison,
    Resampled,
    resample,
    resample_means,
    weighted_spearman,
)
from training.evaluation.vectors import EvaluationError

Array = NDArray[np.float64]


def scored(n: int, *, noise: float, seed: int = 0) -> tuple[Array, Array]:
    """Return human scores with many ties, and cosines that follow them."""
    draw = np.random.default_rng(seed)
    golds = draw.integers(0, 26, n) / 5
    return golds + draw.normal(0, noise, n), golds


def resampled(runs: list[Array], golds: Array, *, resamples: int, seed: int = 0) -> Resampled:
    """Return the scores on one task."""
    return resample([{"pairs": cosines} for cosines in runs], {"pairs": golds}, resamples=resamples, seed=seed)


def interval(runs: list[Array], golds: Array, *, resamples: int, seed: int = 0) -> tuple[float, float]:
    """Return the interval for one task."""
    return resampled(runs, golds, resamples=resamples, seed=seed).interval()


def compare(a: list[Array], b: list[Array], golds: Array, *, resamples: int, seed: int = 0) -> Comparison:
    """Compare two groups of encoders on one task."""
    first, second = (resampled(runs, golds, resamples=resamples, seed=seed) for runs in (a, b))
    return first.against(second)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=30),
    seed=st.integers(0, 1 << 30),
)
def test_a_weight_is_as_many_copies_of_the_pair(pairs: list[tuple[int, int]], seed: int) -> None:
    cosines, golds = np.array(pairs, dtype=float).T
    weights = np.random.default_rng(seed).integers(0, 4, (len(pairs), 3)).astype(float)
    found = weighted_spearman(cosines, golds)(weights)
    for column, correlation in zip(weights.T.astype(int), found, strict=True):
        x, y = np.repeat(cosines, column), np.repeat(golds, column)
        ranked = len(x) > 1 and np.ptp(x) > 0 and np.ptp(y) > 0
        assert correlation == pytest.approx(spearmanr(x, y).statistic if ranked else 0.0, abs=1e-12)


def test_the_interval_is_that_of_explicit_resamples() -> None:
    cosines, golds = scored(120, noise=2)
    draw = np.random.default_rng([5, 0])
    drawn = draw.integers(0, 120, (400, 120))
    expected = [100 * spearmanr(cosines[rows], golds[rows]).statistic for rows in drawn]
    found = resampled([cosines], golds, resamples=400, seed=5)
    assert found.mean == pytest.approx(100 * spearmanr(cosines, golds).statistic)
    assert found.interval(0.9) == pytest.approx(tuple(np.quantile(expected, [0.05, 0.95])))


def test_encoders_are_compared_on_the_same_pairs() -> None:
    a, golds = scored(150, noise=2)
    b = a + np.random.default_rng(1).normal(0, 0.5, 150)
    drawn = np.random.default_rng([0, 0]).integers(0, 150, (300, 150))
    expected = np.array(
        [100 * (spearmanr(a[r], golds[r]).statistic - spearmanr(b[r], golds[r]).statistic) for r in drawn]
    )
    found = compare([a], [b], golds, resamples=300)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(expected, [0.025, 0.975])))
    assert found.better == pytest.approx(np.mean(expected > 0))
    apart = interval([a], golds, resamples=300), interval([b], golds, resamples=300)
    assert found.high - found.low < min(high - low for low, high in apart), "what is hard for both cancels"


def test_seeds_and_tasks_are_averaged() -> None:
    golds = {"short": scored(60, noise=2)[1], "long": scored(200, noise=2, seed=1)[1]}
    runs = [
        {task: scores + np.random.default_rng(seed).normal(0, 2, len(scores)) for task, scores in golds.items()}
        for seed in (2, 3, 4)
    ]
    found = resample(runs, golds, resamples=200)
    low, high = found.interval()
    each = [100 * spearmanr(run[task], golds[task]).statistic for run in runs for task in golds]
    assert found.mean == pytest.approx(np.mean(each)), "each task counts once, however long"
    assert low < found.mean < high
    alone = found.against(resample(runs[:1], golds, resamples=200))
    assert alone.difference == pytest.approx(np.mean(each) - np.mean(each[:2]))


def test_tasks_are_redrawn_independently() -> None:
    """Compare two equal tasks: their mean has 1 sqrt 2 of the spread of each, because they are resampled separately."""
    cosines, golds = scored(100, noise=2)
    alone = resample([{"a": cosines}], {"a": golds}, resamples=2000)
    both = resample([{"a": cosines, "b": cosines}], {"a": golds, "b": golds}, resamples=2000)
    assert both.mean == pytest.approx(alone.mean)
    second = 2 * both.means - alone.means
    assert abs(np.corrcoef(second, alone.means)[0, 1]) < 0.1
    assert np.std(both.means) / np.std(alone.means) == pytest.approx(0.5**0.5, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("statistic", ["interval", "difference"])
def test_intervals_cover_what_all_pairs_would_say(statistic: str) -> None:
    """Draw 200 test sets from one population: 95 % of the intervals contain its value, within chance (p = 1e-4)."""
    draw = np.random.default_rng(7)
    n, times = 150, 200

    def encoders(golds: Array) -> tuple[Array, Array]:
        shared = golds + draw.normal(0, 0.8, len(golds))
        return shared + draw.normal(0, 0.5, len(golds)), shared + draw.normal(0, 0.9, len(golds))

    everyone = draw.normal(size=200_000)
    values = [100 * spearmanr(cosines, everyone).statistic for cosines in encoders(everyone)]
    covered = 0
    for seed in range(times):
        golds = draw.normal(size=n)
        a, b = encoders(golds)
        if statistic == "interval":
            low, high = interval([a], golds, resamples=400, seed=seed)
            covered += low <= values[0] <= high
        else:
            gain = compare([a], [b], golds, resamples=400, seed=seed)
            covered += gain.low <= values[0] - values[1] <= gain.high
    least, most = binom.ppf([1e-4, 1 - 1e-4], times, 0.94)  # The percentile interval is slightly too narrow at n = 150.
    assert least <= covered <= most, covered


def test_an_encoder_is_no_better_than_itself() -> None:
    cosines, golds = scored(80, noise=1)
    assert compare([cosines], [cosines], golds, resamples=100) == Comparison(0.0, 0.0, 0.0, 0.5)
    assert compare([cosines], [np.exp(cosines)], golds, resamples=100) == Comparison(0.0, 0.0, 0.0, 0.5), "ranks alone"


def test_the_other_way_round_is_the_negative() -> None:
    (a, golds), b = scored(80, noise=1), scored(80, noise=3)[0]
    there, back = compare([a], [b], golds, resamples=200), compare([b], [a], golds, resamples=200)
    assert there.difference > 0 and there.low > 0 and there.better == 1
    assert (back.difference, back.low, back.high, back.better) == pytest.approx(
        (-there.difference, -there.high, -there.low, 0.0)
    )


def test_the_order_of_the_pairs_is_indifferent() -> None:
    a, golds = scored(300, noise=2)
    b = a + np.random.default_rng(1).normal(0, 1, 300)
    order = np.random.default_rng(2).permutation(300)
    one = compare([a], [b], golds, resamples=4000)
    other = compare([a[order]], [b[order]], golds[order], resamples=4000)
    assert other.difference == pytest.approx(one.difference)
    width = one.high - one.low
    assert (other.low, other.high) == pytest.approx((one.low, one.high), abs=0.1 * width)
    assert other.better == pytest.approx(one.better, abs=0.03)


def test_a_seed_repeats_and_a_larger_test_set_narrows() -> None:
    small, large = (interval([c], g, resamples=200, seed=3) for c, g in (scored(100, noise=2), scored(1600, noise=2)))
    assert small == interval([scored(100, noise=2)[0]], scored(100, noise=2)[1], resamples=200, seed=3)
    assert large[1] - large[0] < 0.5 * (small[1] - small[0])


@pytest.mark.parametrize(
    ("cosines", "golds", "reason"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0], r"shape \(3,\) for scores of shape \(2,\)"),
        ([1.0, np.nan], [1.0, 2.0], "cosines contain NaN"),
        ([1.0, 1.0], [1.0, 2.0], "all cosines are equal"),
        ([1.0, 2.0], [3.0, 3.0], "all people's scores are equal"),
    ],
)
def test_what_has_no_interval_says_why(cosines: list[float], golds: list[float], reason: str) -> None:
    with pytest.raises(EvaluationError, match=reason):
        interval([np.array(cosines)], np.array(golds), resamples=10)


def test_accuracies_are_resampled_as_correlations_are() -> None:
    """Compare with explicit draws for two tasks and two encoders, and with the same draws for the other encoders."""
    draw = np.random.default_rng(2)
    sizes = {"MR": 90, "TREC": 40}
    a, b, other = ({task: draw.random(n) < share for task, n in sizes.items()} for share in (0.7, 0.6, 0.5))

    def redrawn(*runs: dict[str, NDArray[np.bool_]]) -> Array:
        tasks = []
        for number, (task, n) in enumerate(sizes.items()):
            rows = np.random.default_rng([7, number]).integers(0, n, (300, n))
            tasks.append(np.mean([100 * run[task][rows].mean(axis=1) for run in runs], axis=0))
        return np.array(np.mean(tasks, axis=0))

    mine, theirs = (resample_means(runs, resamples=300, seed=7) for runs in ([a, b], [other]))
    assert mine.mean == pytest.approx(100 * np.mean([run[task].mean() for run in (a, b) for task in sizes]))
    np.testing.assert_allclose(mine.means, redrawn(a, b))
    gain = mine.against(theirs, 0.9)
    expected = np.quantile(redrawn(a, b) - redrawn(other), [0.05, 0.95])
    assert (gain.low, gain.high) == pytest.approx(tuple(expected))


def test_accuracies_that_can_not_be_resampled() -> None:
    hits = {"MR": np.array([True, False])}
    for others in ({"CR": hits["MR"]}, {"MR": np.array([True])}):
        with pytest.raises(EvaluationError, match="can't be compared"):
            resample_means([hits, others])
    with pytest.raises(EvaluationError, match="can't be compared"):
        resample_means([{"MR": np.array([], dtype=bool)}])
