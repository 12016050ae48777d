"""Command `python -m benchmarks.figures`: draw the figures of the documentation from benchmarks/results."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.surroundings import RESULTS, read
from training.evaluation.report.published import BERT, BERT_LARGE, ROBERTA, ROBERTA_LARGE, SBERT_LARGE, STS, STS_ROWS

DOCS = Path(__file__).parents[1] / "docs"
ENCODERS = RESULTS / "encoders"
SIZES = {BERT: 110, ROBERTA: 125, BERT_LARGE: 335, SBERT_LARGE: 335, ROBERTA_LARGE: 355}
"""Number of weights of each published backbone, in millions."""
PAPERS = {
    "gs-infonce": "GS-InfoNCE",
    "dclr": "DCLR",
    "whitenedcse": "WhitenedCSE",
    "imsimcse": "ImSimCSE",
}
"""Names of methods in the published results, by the objectives that are compared with SimCSE."""
COMPARED = ("simcse", *PAPERS)
COLOURS = {objective: f"C{i}" for i, objective in enumerate(COMPARED)}
STARTS = {
    "minilm,\nmean": "from_minilm",
    "minilm,\n[CLS]": "objectives",
    "minilm, [CLS],\nat 1e-4": "objectives_1e-4",
    "made of\nminilm": "from_continued",
    "6 × 384\nfrom random": "from_random",
    "4 × 256\nfrom random": "from_pretrained_40",
    "8 × 512\nfrom random,\nsix tasks": "from_medium",
}
"""Names of studies by their initial encoder. The encoders are minilm with mean pooling, minilm with [CLS] at two
learning rates, and four language models."""
PEERS = (
    "infinity_torch",
    "infinity_optimum",
    "st_torch",
    "st_onnx",
    "st_openvino",
    "fastembed",
    "embed_anything",
    "ctranslate2",
    "llama_cpp",
)
"""Contestants of the serving benchmark that are other projects."""
CONES = {
    "[CLS] of minilm": "objectives",
    "of a language model made of minilm": "from_continued",
    "of 6 × 384 from random": "from_random",
    "of 8 × 512 from random, made on a GPU": "from_medium",
}

Run = dict[str, Any]


def main() -> None:
    """Draw all figures."""
    rcParams["svg.hashsalt"] = "isosphere"  # A fixed salt makes the files reproducible.
    for name, draw, size in (
        ("sizes", _sizes, (7, 4.2)),
        ("gains", _gains, (8.4, 4)),
    ):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        _save(figure, name)
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    _loads(*figure.subplots(2, height_ratios=(11, 3)))
    _save(figure, "loads")
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    places = figure.subplots(2, 2).ravel()
    for axes, (title, study) in zip(places, CONES.items(), strict=True):
        _space(axes, title, _runs(study))
    places[0].legend(fontsize=7)
    _save(figure, "space")


def _save(figure: Figure, name: str) -> None:
    figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})


def _runs(study: str, *, untrained: bool = False) -> list[Run]:
    lines = (RESULTS / "studies" / f"{study}.jsonl").read_text(encoding="utf-8").splitlines()
    return [run for run in map(json.loads, lines) if run["untrained"] == untrained]


def _mean(scores: dict[str, float]) -> float:
    """Return the mean over the available tasks: all seven STS tasks or, in GPU runs, the six without SICK-R."""
    return fmean(scores[task] for task in STS if task in scores)


def _sizes(axes: Axes) -> None:
    """Plot the mean score of the seven tasks against the number of weights, for published results and for our results.

    Our results have error bars: the standard deviation over seeds.
    """
    for row in STS_ROWS:
        if row.method in ("SimCSE", *PAPERS.values()):
            from_sbert = row.backbone == SBERT_LARGE
            axes.plot(SIZES[row.backbone], row.mean, "s" if from_sbert else "o", color="0.6", markersize=4)
            if from_sbert:
                label = f"{row.method}, {row.backbone}"
                axes.text(SIZES[row.backbone], row.mean + 0.12, label, color="0.4", fontsize=8, ha="center")
    axes.text(105, 76.6, "as published,\nfrom BERT and RoBERTa", color="0.4", fontsize=8, ha="right")
    taught = [_mean(run["tests"]) for run in read(ENCODERS / "distilled.json")["twice"]["runs"]]
    larger = read(ENCODERS / "mpnet.json")
    tuned = [run["tests"]["mean"] for run in (*larger["runs"], *larger["other_order"]["runs"])]
    soup = read(ENCODERS / "default.json")["scores"]["STS mean"]
    (start,) = (_mean(run["scores"]) for run in _runs("from_minilm", untrained=True))
    for label, weights, values in (
        ("minilm without training", 22.7, [start]),
        ("the default", 22.7, [soup]),
        (f"taught by a larger one, n = {len(taught)}", 22.7, taught),
        ("all-mpnet-base-v2 without training", 109, [larger["untrained"]["mean"]]),
        (f"all-mpnet-base-v2 tuned, n = {len(tuned)}", 109, tuned),
    ):
        spread = stdev(values) if len(values) > 1 else 0
        axes.errorbar(weights, fmean(values), spread, fmt="o", capsize=3, color="C0" if weights < 100 else "C1")
        axes.annotate(f"  {label}", (weights, fmean(values)), fontsize=8, va="center")
    axes.set(xscale="log", xlabel="weights, millions", ylabel="mean of seven STS tasks", xlim=(18, 500))
    axes.set_xticks([22, 50, 110, 335], ["22", "50", "110", "335"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def _gains(axes: Axes) -> None:
    """Plot each objective's gain over SimCSE with the same seed, and the published gain from BERT-base beside it."""
    published = {row.method: row.mean for row in STS_ROWS if row.backbone == BERT}
    for i, (objective, method) in enumerate(PAPERS.items()):
        shift = 0.16 * (i - 1.5)
        for place, study in enumerate(STARTS.values()):
            scores: dict[str, dict[int, float]] = defaultdict(dict)
            for run in _runs(study):
                scores[run["config"]["objective"]][run["config"]["seed"]] = _mean(run["scores"])
            if objective not in scores:  # DCLR is missing in GPU runs.
                continue
            gains = [scores[objective][seed] - scores["simcse"][seed] for seed in sorted(scores["simcse"])]
            label = objective if place == 0 else None
            axes.errorbar(
                place + shift,
                fmean(gains),
                stdev(gains),
                fmt="o",
                ms=4,
                capsize=3,
                color=COLOURS[objective],
                label=label,
            )
        gain = published[method] - published["SimCSE"]
        axes.plot(len(STARTS) + shift, gain, "D", ms=5, color=COLOURS[objective], fillstyle="none")
    axes.axhline(0, color="0.5", linewidth=0.8)
    axes.set(ylabel="gain over SimCSE, mean of seven STS tasks")
    axes.set_xticks(range(len(STARTS) + 1), [*STARTS, "BERT-base,\nas published"], fontsize=8)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=8)


def _loads(speeds: Axes, latencies: Axes) -> None:
    """Plot the results of the serving benchmark for our server and its peers.

    The first axes have the speeds, as multiples of our server's speed. The second have the latencies of open loops,
    because the speed of an open loop is given.
    """
    loads = read(RESULTS / "serving_epyc.json")["figures"]["loads"]
    closed = {name: load for name, load in loads.items() if not name.startswith("open_")}
    opened = {name: load for name, load in loads.items() if name not in closed}
    for axes, drawn, figure, label in (
        (speeds, closed, "times_isosphere", "texts per second, as a multiple of our server's"),
        (latencies, opened, "p95_ms", "95th percentile of the latency, ms"),
    ):
        for i, name in enumerate(("isosphere", *PEERS)):
            found = [
                (row, measured[figure])
                for row, load in enumerate(drawn.values())
                # For a peer that failed, the reason is stored instead of figures.
                if isinstance(measured := load.get(name), dict) and figure in measured
            ]
            if not found:
                continue
            axes.plot(
                [value for _, value in found],
                [row for row, _ in found],
                "|osD^vP*Xp"[i],
                color=f"C{i - 1}" if i else "k",
                markersize=5 if i else 16,
                linestyle="none",
                label=name,
            )
        axes.set(xscale="log", xlabel=label)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yticks(range(len(drawn)), drawn)
        axes.invert_yaxis()
        axes.grid(alpha=0.3)
    speeds.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))


def _space(axes: Axes, title: str, runs: list[Run]) -> None:
    """Plot alignment against uniformity during training, averaged over seeds, as in DCLR's Figure 4."""
    for objective in COMPARED:
        curves = [run["curve"] for run in runs if run["config"]["objective"] == objective]
        if not curves:
            continue
        path = [
            [fmean(point[measure] for point in points) for points in zip(*curves, strict=True)]
            for measure in ("uniformity", "alignment")
        ]
        axes.plot(*path, marker="o", markersize=3, linewidth=1, color=COLOURS[objective], label=objective)
    axes.plot(path[0][0], path[1][0], "ks", markersize=5)
    axes.set_title(title, fontsize=9)
    axes.set(xlabel="uniformity", ylabel="alignment")
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    main()
