"""Tests of the report about results that the tests construct."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr, ttest_1samp, ttest_ind

from tests.training.studies.conftest import call, line, write
from training.evaluation.bootstrap import Comparison, resample
from training.evaluation.pairs import STS_TASKS
from training.studies.page import figures, page
from training.studies.results import RESULTS, RUNS, read_results
from training.studies.scores import COSINES, COSINES_FILE, DEV, GOLDS, save_arrays
from training.studies.summary import SeedScores, summaries, summarise, welch
from training.studies.table import cells, explanation, table, task_grid
from training.studies.trial import StudyError

Capture = pytest.CaptureFixture[str]
TASKS = tuple(STS_TASKS)
PAIRS = 80


def noisy(study: Path, arm: str, seed: int, noise: float, golds_seed: int = 0) -> dict[str, Any]:
    """Return a run with stored cosines that follow the human scores, with noise."""
    golds, cosines = {}, {}
    for number, task in enumerate((*TASKS, DEV)):
        draw = np.random.default_rng([golds_seed, number])
        golds[task] = draw.integers(0, 6, PAIRS).astype(np.float32)
        own = np.random.default_rng([seed, number, ord(arm[0])])
        cosines[task] = (golds[task] + noise * own.normal(size=PAIRS)).astype(np.float32)
    scores = {task: 100 * float(spearmanr(cosines[task], golds[task]).statistic) for task in golds}
    folder = study / RUNS / f"{arm}{seed}"
    folder.mkdir(parents=True)
    save_arrays(folder / COSINES_FILE, {COSINES: cosines, GOLDS: golds})
    return line(arm, seed, 0.0, scores=scores)


def test_means_and_deviations(tmp_path: Path) -> None:
    scores = {"plain": (70.0, 71.0, 73.5), "other": (75.126,)}
    write(tmp_path, *(line(arm, seed, y) for arm, of in scores.items() for seed, y in enumerate(of)))
    plain, other = summarise(read_results(tmp_path / RESULTS), tmp_path).rows
    assert (plain.label, len(plain.results), len(other.results)) == ("plain", 3, 1)
    assert plain.mean.mean == pytest.approx(fmean(scores["plain"]))
    assert plain.mean.deviation == pytest.approx(stdev(scores["plain"]))
    assert other.mean.mean == pytest.approx(75.13), "each task is rounded first, as in the papers"
    assert other.mean.deviation is None and other.gain is None and other.verdict == "", "no cosines, no interval"
    assert other.dev and other.dev.mean == pytest.approx(75.126)
    assert cells(plain) == ["plain", "3", "71.50 ± 1.80", "71.50 ± 1.80", "", "", "", ""]
    assert cells(other)[:4] == ["other", "1", "75.13", "75.13"]


def test_each_task_stands_by_itself_too(tmp_path: Path) -> None:
    one, two = ({**dict.fromkeys(STS_TASKS, 70.0), "SICKR": y} for y in (60.0, 62.0))
    write(tmp_path, line("plain", 0, 0.0, scores=one), line("plain", 1, 0.0, scores=two))
    summary = summarise(read_results(tmp_path / RESULTS), tmp_path)
    head, cells = task_grid(summary)
    assert head == ["arm", *STS_TASKS]
    assert cells[head.index("SICKR")] == "61.00 ± 1.41" and cells[head.index("STSB")] == "70.00 ± 0.00"
    assert "61.00 ± 1.41" in table(summary) and "Task by task" in page("s", "", summary)


def test_what_dclr_removed_is_in_the_report(tmp_path: Path) -> None:
    curve = [{"step": 0}, {"step": 5, "removed_share": 0.002}, {"step": 10, "removed_share": 0.004}]
    write(tmp_path, line("DCLR", 0, 70.0, curve=curve), line("SimCSE", 0, 70.0))
    assert [result.removed_share for result in read_results(tmp_path / RESULTS)] == [pytest.approx(0.003), None]
    summary = summarise(read_results(tmp_path / RESULTS), tmp_path)
    assert "removed negatives" in table(summary) and "0.00300" in table(summary)
    assert "Removed negatives while training" in page("s", "", summary)


def test_a_sweep_shows_stsb_and_sickr_apart(tmp_path: Path) -> None:
    """Draw DCLR's figures 5 and 6."""
    write(tmp_path, *(line("phi", 0, 70.0 + x, id=f"{x}", axes={"threshold": x, "seed": 0}) for x in (0.7, 0.9)))
    drawn = page("s", "", summarise(read_results(tmp_path / RESULTS), tmp_path))
    assert "STS-B over threshold, phi." in drawn and "SICK-R over threshold, phi." in drawn


def test_the_nearest_in_a_batch_are_a_figure_of_each_arm(tmp_path: Path) -> None:
    cosines = {"32": [0.5, 0.4, 0.3, 0.2], "64": [0.6, 0.5, 0.4, 0.3]}
    single = line("c", 0, 70.0, nearest_cosines={"32": cosines["32"]})
    write(tmp_path, line("a", 0, 70.0, nearest_cosines=cosines), line("b", 0, 70.0), single)
    drawn = page("s", "", summarise(read_results(tmp_path / RESULTS), tmp_path))
    assert drawn.count("Nearest in-batch negatives") == drawn.count("Nearest in-batch negatives, a.") > 0
    assert "4. nearest" in drawn


def test_the_mean_is_of_the_tasks_that_all_have(tmp_path: Path) -> None:
    some = line("a", 0, 0.0, scores={"STS12": 60.0, "STS13": 70.0, DEV: 1.0})
    write(tmp_path, some, line("b", 0, 80.0))
    summary = summarise(read_results(tmp_path / RESULTS), tmp_path)
    assert summary.tasks == ("STS12", "STS13") and summary.measure == "mean of 2 tasks"
    assert [row.mean.mean for row in summary.rows] == [65, 80]
    write(tmp_path, line("a", 0, 0.0, scores={DEV: 55.5}), line("b", 0, 80.0))
    assert [row.mean.mean for row in summarise(read_results(tmp_path / RESULTS), tmp_path).rows] == [55.5, 80], (
        "dev, without any test"
    )
    write(tmp_path, line("a", 0, 0.0, scores={}), line("b", 0, 80.0))
    with pytest.raises(StudyError, match="share no task"):
        summarise(read_results(tmp_path / RESULTS), tmp_path)


def test_gains_are_paired_and_say_what_they_show(tmp_path: Path) -> None:
    runs = [("base", 2.0), ("alike", 2.0), ("good", 0.5), ("poor", 9.0)]
    write(tmp_path, *(noisy(tmp_path, arm, seed, noise) for arm, noise in runs for seed in (0, 1, 2)))
    results = read_results(tmp_path / RESULTS)
    base, alike, good, poor = summarise(results, tmp_path, resamples=200).rows
    assert base.gain is None and base.verdict == ""
    assert good.gain and poor.gain and None not in (good.gain.better, poor.gain.better)
    assert good.gain.low > 0 and good.gain.better == 1 and good.verdict == "better"
    assert poor.gain.high < 0 and poor.gain.better == 0 and poor.verdict == "worse"
    assert alike.gain and alike.gain.low <= 0 <= alike.gain.high and alike.verdict == "interval contains 0"
    assert good.gain.difference == pytest.approx(good.mean.mean - base.mean.mean, abs=0.01)
    assert base.interval and base.interval[0] < base.mean.mean < base.interval[1]

    other = summarise(results, tmp_path, against="good", resamples=200)
    assert other.against == "good" and other.rows[2].gain is None
    back = other.rows[0].gain
    assert back and (back.difference, back.low, back.high) == pytest.approx(
        (-good.gain.difference, -good.gain.high, -good.gain.low)
    )
    with pytest.raises(StudyError, match="--against none such: none of base; alike; good; poor"):
        summaries(results, tmp_path, against="none such")


def test_the_gain_is_the_bootstrap_of_all_tasks(tmp_path: Path) -> None:
    write(tmp_path, noisy(tmp_path, "a", 0, 2.0), noisy(tmp_path, "b", 0, 1.5))
    loaded = []
    for name in ("a0", "b0"):
        arrays = np.load(tmp_path / RUNS / name / COSINES_FILE)
        loaded.append({task: arrays[f"cosines {task}"] for task in TASKS})
        golds = {task: arrays[f"golds {task}"] for task in TASKS}
        arrays.close()
    a, b = (resample([cosines], golds, resamples=300) for cosines in loaded)
    found = summarise(read_results(tmp_path / RESULTS), tmp_path, resamples=300).rows[1]
    assert found.gain == b.against(a) and found.interval == b.interval()
    assert found.verdict == "better, by one seed" or found.undecided


def test_without_the_scores_of_pairs_the_interval_is_over_seeds(tmp_path: Path) -> None:
    scores = {"base": (70.0, 70.2, 69.9), "good": (72.0, 72.3, 71.8), "alike": (70.1, 69.9, 70.3), "one": (75.0,)}
    write(tmp_path, *(line(arm, seed, y) for arm, of in scores.items() for seed, y in enumerate(of)))
    summary = summarise(read_results(tmp_path / RESULTS), tmp_path)
    base, good, alike, one = summary.rows
    expected = ttest_ind(scores["good"], scores["base"], equal_var=False).confidence_interval()
    assert good.gain and (good.gain.low, good.gain.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert good.gain.difference == pytest.approx(fmean(scores["good"]) - fmean(scores["base"]))
    assert (good.verdict, alike.verdict, one.verdict) == ("better", "interval contains 0", "")
    assert base.gain is None and one.gain is None
    assert cells(good)[4:7] == ["+2.00", f"[{expected.low:+.2f}, {expected.high:+.2f}]", ""]
    said = explanation(summary)
    assert "Welch's t-test over seeds, for: good; alike." in said and "a paired bootstrap" not in said
    drawn = page("s", "", summary)
    assert "Whiskers: the interval of Welch&#39;s t-test over seeds;" in drawn.replace("'", "&#39;")


def test_arms_with_the_scores_of_pairs_keep_their_bootstrap(tmp_path: Path) -> None:
    runs = [noisy(tmp_path, arm, seed, noise) for arm, noise in (("base", 2.0), ("good", 0.5)) for seed in (0, 1)]
    write(tmp_path, *runs, line("recorded", 0, 70.0), line("recorded", 1, 71.0))
    summary = summarise(read_results(tmp_path / RESULTS), tmp_path, resamples=20)
    assert [row.gain and row.gain.better is None for row in summary.rows] == [None, False, True]
    assert "a paired bootstrap" in explanation(summary) and "over seeds, for: recorded." in explanation(summary)


def test_seeds_may_outweigh_the_pairs(tmp_path: Path) -> None:
    """Use seeds with very different scores, whose variance exceeds the gain on these pairs."""
    runs = [("a", 0, 2.0), ("a", 1, 6.0), ("b", 0, 1.2), ("b", 1, 5.0)]
    write(tmp_path, *(noisy(tmp_path, *run) for run in runs))
    _, b = summarise(read_results(tmp_path / RESULTS), tmp_path, resamples=200).rows
    assert b.gain and b.gain.low > 0 and b.noise and b.gain.difference < b.noise
    assert b.verdict == "better, within the seeds' noise"


@given(
    mine=st.lists(st.integers(0, 1000), min_size=2, max_size=6, unique=True),
    theirs=st.lists(st.integers(0, 1000), min_size=2, max_size=6, unique=True),
)
def test_the_seeds_noise_is_what_a_t_test_allows(mine: list[int], theirs: list[int]) -> None:
    """Check that SciPy's test has p = 5 % at exactly this difference."""
    noise = welch(SeedScores(tuple(mine)), SeedScores(tuple(theirs)))
    assert noise is not None
    moved = [x - fmean(mine) + fmean(theirs) + noise for x in mine]
    assert ttest_ind(moved, theirs, equal_var=False).pvalue == pytest.approx(0.05, rel=1e-6)


@given(mine=st.lists(st.integers(0, 1000), min_size=2, max_size=6, unique=True), theirs=st.floats(0, 1000))
def test_beside_what_was_not_trained_it_is_what_a_test_of_one_sample_allows(mine: list[int], theirs: float) -> None:
    noise = welch(SeedScores(tuple(mine)), SeedScores((theirs,), seedless=True))
    assert noise is not None and noise == welch(SeedScores((theirs,), seedless=True), SeedScores(tuple(mine)))
    moved = [x - fmean(mine) + theirs + noise for x in mine]
    assert ttest_1samp(moved, theirs).pvalue == pytest.approx(0.05, rel=1e-6)


def test_what_was_not_trained_has_no_seeds(tmp_path: Path) -> None:
    runs = [noisy(tmp_path, "raw", 0, 2.0) | {"untrained": True}, *(noisy(tmp_path, "a", seed, 1.5) for seed in (1, 2))]
    write(tmp_path, *runs)
    _, a = summarise(read_results(tmp_path / RESULTS), tmp_path, resamples=200).rows
    assert a.noise == welch(a.mean, SeedScores((0.0,), seedless=True)), "the start's is no noise, wherever it lies"
    assert "by one seed" not in a.verdict


def test_the_noise_of_few_seeds() -> None:
    three = SeedScores((70.0, 71.0, 72.0))
    assert welch(three, three) == pytest.approx(2.7764 * (2 / 3) ** 0.5, rel=1e-4), "t at 4 degrees of freedom"
    assert welch(three, SeedScores((70.0,))) is None and welch(SeedScores((70.0,)), three) is None
    assert welch(SeedScores((70.0, 70.0)), SeedScores((71.0, 71.0))) == 0


def test_comparisons_are_counted(tmp_path: Path) -> None:
    write(tmp_path, *(noisy(tmp_path, arm, 0, 2.0) for arm in "abc"), line("bare", 0, 70.0))
    assert "Comparisons made: 2, each" in explanation(
        summarise(read_results(tmp_path / RESULTS), tmp_path, resamples=20)
    )
    write(tmp_path, line("x", 0, 70.0), line("y", 0, 70.0))
    assert "Comparisons" not in explanation(summarise(read_results(tmp_path / RESULTS), tmp_path))


def test_a_sweep_shows_where_its_means_lie_on_other_pairs(tmp_path: Path) -> None:
    lines = []
    for place, noise in enumerate((3.0, 2.0, 1.0)):
        axes = {"temperature": noise, "seed": place}
        lines.append({**noisy(tmp_path, "a", place, noise), "axes": axes})
    write(tmp_path, *lines, line("a", 9, 70.0, axes={"temperature": 4.0, "seed": 9}))
    summary = summarise(read_results(tmp_path / RESULTS), tmp_path, resamples=50)
    sweep = next(each for each in figures(summary) if "over temperature" in "".join(each.itertext()))
    spreads = [part for part in sweep.iter("line") if part.get("class") == "spread mark-0"]
    assert len(spreads) == 3, "one without cosines has none"
    assert all(part.get("x1") == part.get("x2") for part in spreads)
    dots = {part.get("cx"): part for part in sweep.iter("circle") if part.get("class") == "dot mark-0"}
    for part in spreads:
        low, middle, high = (
            float(part.get("y1", "")),
            float(dots[part.get("x1")].get("cy", "")),
            float(part.get("y2", "")),
        )
        assert 14 <= high < middle < low <= 184, "in the frame, about the mean"
    assert "Vertical lines: the range of 95 % of" in "".join(sweep.itertext())


@pytest.mark.parametrize(("sign", "shown"), [(1, "+0.00"), (-1, "+0.00")])
def test_what_is_less_than_the_decimals_is_no_difference(sign: int, shown: str, tmp_path: Path) -> None:
    write(tmp_path, line("a", 0, 70.0), line("b", 0, 70.0))
    _, b = summarise(read_results(tmp_path / RESULTS), tmp_path).rows
    low, high = sorted((sign * 1e-4, sign * 3e-4))
    equal = replace(b, gain=Comparison(sign * 2e-4, low, high, 1.0))
    assert equal.verdict == "interval contains 0" and cells(equal)[4:6] == [shown, f"[{shown}, {shown}]"]
    apart = replace(b, gain=Comparison(sign * 0.2, 1000 * low, 1000 * high, 1.0))
    assert apart.verdict == f"{'better' if sign > 0 else 'worse'}, by one seed"


def test_training_in_vain_is_said(tmp_path: Path) -> None:
    untrained = line("raw", 0, 60.0, curve=[], best_step=0)
    write(tmp_path, untrained, line("good", 0, 70.0), line("vain", 0, 60.0, best_step=0))
    said = explanation(summarise(read_results(tmp_path / RESULTS), tmp_path))
    assert said.endswith("no step was better than the initial encoder: vain.")


def test_a_criterion_agrees_with_the_score_as_far_as_both_rank_the_runs_alike(tmp_path: Path) -> None:
    def run(seed: int, score: float, criterion: float) -> dict[str, Any]:
        curve = [{"step": 0, "known_item_ndcg10": 99.0}, {"step": 5, "known_item_ndcg10": criterion}]
        return line("a", seed, score, curve=curve, best_step=5)

    alike = [run(seed, 70 + seed, 30 + seed**2) for seed in range(4)]
    write(tmp_path, *alike)
    assert summarise(read_results(tmp_path / RESULTS), tmp_path).agreement("known_item_ndcg10") is None
    write(tmp_path, *alike, run(4, 71.5, 50))
    summary = summarise(read_results(tmp_path / RESULTS), tmp_path)
    # Squared differences of ranks: the last run has the highest criterion, and the score of rank 3.
    correlation, runs = summary.agreement("known_item_ndcg10") or (0, 0)
    assert correlation == pytest.approx(1 - 6 * (1 + 1 + 4) / (5 * 24)) and runs == 5
    assert summary.agreement("self_retrieval_mrr10") is None
    assert "over 5 runs: 0.70" in explanation(summary)
    write(tmp_path, *(run(seed, 70 + seed, 30) for seed in range(5)))
    assert summarise(read_results(tmp_path / RESULTS), tmp_path).agreement("known_item_ndcg10") is None


def test_other_people_or_missing_cosines_are_named(tmp_path: Path) -> None:
    write(tmp_path, noisy(tmp_path, "a", 0, 1.0), noisy(tmp_path, "b", 0, 1.0, golds_seed=1))
    with pytest.raises(
        StudyError, match=r"b0/cosines\.npz: the human golds of STS12 differ from those of the first run"
    ):
        summarise(read_results(tmp_path / RESULTS), tmp_path)
    (tmp_path / RUNS / "b0" / COSINES_FILE).unlink()
    a, b = summarise(read_results(tmp_path / RESULTS), tmp_path).rows
    assert a.interval and b.interval is None and b.gain is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"results\.jsonl: no run is finished"),
        ("{\n", r"results\.jsonl:1: "),
        ("[]\n", r"results\.jsonl:1: not an object"),
        ('{"id": "x", "arm": "a"}\n', r"results\.jsonl:1: axes: missing"),
        (json.dumps(line("a", 0, 1.0)) + "\n" + json.dumps(line("a", 1, 1.0, scores={"STS12": "x"})) + "\n",
         r"results\.jsonl:2: STS12: 'x' is not a number"),
        (json.dumps(line("a", 0, 1.0, curve={})) + "\n", r"results\.jsonl:1: curve: expected list, got \{\}"),
    ],
)  # fmt: skip
def test_broken_results_are_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text(text)
    with pytest.raises(StudyError, match=message):
        read_results(tmp_path / RESULTS)


def test_the_command_prints_a_table_and_writes_a_page(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(StudyError, match="`study run` writes it"):
        call("report", str(tmp_path))
    write(tmp_path, *(noisy(tmp_path, arm, seed, noise) for arm, noise in (("a", 3.0), ("b", 2.9)) for seed in (0, 1)))
    html = tmp_path / "page.html"
    assert call("report", str(tmp_path), "--resamples", "100", "--html", str(html)) == 0
    out = capsys.readouterr().out
    summary = summarise(read_results(tmp_path / RESULTS), tmp_path, resamples=100)
    assert out == table(summary) + "\n"
    assert "The interval contains 0, so no difference is shown, for: b." in " ".join(out.split())
    assert re.search(r"^b +2 +\d\d\.\d\d ± \d\.\d\d .* interval contains 0$", out, re.MULTILINE)
    assert html.read_text() == page(tmp_path.name, "", summary)


def test_the_page_needs_nothing_beside_it_and_draws_what_there_is(tmp_path: Path) -> None:
    def point(k: float, seed: int, rest: str) -> dict[str, Any]:
        curve = [
            {"step": step, "stsb_dev_spearman": 70 + k, "uniformity": -k, "effective_rank": 9 + k}
            for step in (0, 5, 10)
        ]
        axes = {"fraction": k, "seed": seed, "weighting": rest}
        return line("<arm>", seed, 70 + 10 * k + seed, id=f"{k}{seed}{rest}", axes=axes, curve=curve)

    write(tmp_path, *(point(k, seed, rest) for k in (0.003, 0.1, 1.0) for seed in (0, 1) for rest in ("x", "y")))
    text = page("few & shot", "about it", summarise(read_results(tmp_path / RESULTS), tmp_path))
    assert "http" not in re.sub(r'xmlns="http://www\.w3\.org/2000/svg"', "", text) and "<script" not in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text
    assert "few &amp; shot" in text and "&lt;arm&gt;" in text and "<arm>" not in text
    drawings = [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    titles = [next(part.text for part in each.iter() if part.tag.endswith("title")) for each in drawings]
    assert titles == [
        "Mean of 7 tasks of each arm.", "Mean of 7 tasks: gain over <arm>, fraction 0.003, x.",
        "Mean of 7 tasks over fraction.", "STS-B over fraction.", "SICK-R over fraction.", "STS-B dev while training.",
        "Uniformity while training.", "Effective rank while training.", "Alignment and uniformity.",
    ]  # fmt: skip
    arms, _, sweep = drawings[:3]
    assert sum(part.get("class") == "dot paper" for part in arms.iter()) == 12, "every seed is shown"
    ticks = [part.text for part in sweep.iter() if part.get("class") == "tick"]
    assert {"0.3 %", "10 %", "100 %"} <= set(ticks)
    places = [float(part.get("cx", "")) for part in sweep.iter() if (part.get("class") or "").startswith("dot mark")]
    (first, middle, last), (low, high) = places[:3], (np.log(0.1 / 0.003), np.log(1 / 0.003))
    assert (middle - first) / (last - first) == pytest.approx(low / high, abs=0.01), "a logarithmic axis"
