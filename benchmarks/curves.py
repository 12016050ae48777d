"""Learning curves: STS-B dev scores while each objective trains minilm with [CLS] pooling on the same sentences.

`python -m benchmarks.curves --data SENTEVAL --corpus FILE` takes half an hour on two cores. It writes
benchmarks/results/curves.json and docs/curves.svg. There is only one seed, so only the shape of a curve is reliable.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

from benchmarks.surroundings import RESULTS, surroundings, write
from models.cli.command_line import Parser
from training import run
from training.checkpoints.publish import publish
from training.checkpoints.record import evaluations
from training.config import from_preset
from training.objectives import OBJECTIVES

PLOT = Path(__file__).parents[1] / "docs" / "curves.svg"

Curve = list[tuple[int, float]]


def main() -> None:
    """Train with each objective, write the scores and plot them."""
    parser = Parser(prog="python -m benchmarks.curves", description=__doc__)
    parser.add_argument("--data", required=True, help="SentEval's folder")
    parser.add_argument("--corpus", required=True, help="corpus file, one sentence per line")
    parser.add_argument("--description", default="", help="description of the corpus in the result")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--every", type=int, default=50)
    options = parser.parse_args()
    curves: dict[str, Curve] = {}
    about = surroundings()  # Read at the start, because each stored result modifies the checkout.
    with TemporaryDirectory() as folder:
        for objective in OBJECTIVES:  # SimCSE is trained first, because other objectives use its encoder as teacher.
            curves[objective] = _trained(objective, options, Path(folder))
            print(objective, curves[objective], flush=True)
            _keep(curves, options, about)


def _keep(curves: dict[str, Curve], options: argparse.Namespace, about: Mapping[str, Any]) -> None:
    result = {
        "command": (
            f"python -m benchmarks.curves --steps {options.steps} --batch {options.batch} --every {options.every}; "
            f"{options.description}"
        ),
        **about,
        "setting": "minilm from [CLS], with a head, 32 tokens, learning rate 3e-5 to 0, seed 42; (step, STS-B dev)",
        "figures": curves,
    }
    write(RESULTS / "curves.json", result)
    _plot(curves)


def _trained(objective: str, options: argparse.Namespace, folder: Path) -> Curve:
    config = from_preset(objective).override(
        {
            "corpus": (options.corpus,),
            "eval_data": options.data,
            "teacher": str(folder / "simcse") if objective == "dclr" else None,
            "pooling": "cls",
            "head": True,
            "learning_rate": 3e-5,
            "batch_size": options.batch,
            "max_steps": options.steps,
            "eval_every": options.every,
            "out": str(folder / objective),
            "run": str(folder / f"run-{objective}"),
        }
    )
    outcome = run.fit(config, sys.stderr)
    if objective == "simcse":
        publish(config, outcome, {})
    return [(line["step"], round(line[outcome.metric], 2)) for line in evaluations(Path(config.run))]


def _plot(curves: dict[str, Curve]) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for objective, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=objective)
    axes.set(xlabel="step", ylabel="STS-B dev, Spearman × 100", title="From [CLS] of minilm")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(PLOT, metadata={"Date": None})


if __name__ == "__main__":
    main()
