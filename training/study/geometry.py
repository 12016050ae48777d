"""Geometry of each arm's vectors, which papers use to explain scores."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from training.study.results import Result
from training.study.summary import Row, Summary

QUANTITIES = {
    "alignment": ("alignment", 3),
    "uniformity": ("uniformity", 2),
    "effective_rank": ("effective rank", 0),
    "removed_share": ("removed negatives", 5),
}
"""Fields of a result, with column title and significant decimals."""

EXPLANATION = (
    "Of STS-B dev's sentences under the weights that were judged, mean ± standard deviation over seeds. Alignment: the "
    "mean squared distance of pairs scored above 4. Uniformity: from 0, a single point, to -4, orthogonal. Effective "
    "rank: how many directions the vectors fill, at most their width. Removed negatives: the share of the in-batch "
    "negatives that DCLR's weights left out while training."
)


def geometry_grid(summary: Summary) -> list[list[str]]:
    """Return the header and a row for each arm. Return nothing if no result has geometry."""
    known = [name for name in QUANTITIES if any(_of(row.results, name) for row in summary.rows)]
    head = ["arm", *(QUANTITIES[name][0] for name in known)]
    return (
        [head, *([row.label, *(_geometry_cell(row, name) for name in known)] for row in summary.rows)] if known else []
    )


def _of(results: Sequence[Result], name: str) -> list[float]:
    """Return one value per seed. Return nothing if a seed has no value."""
    values = [value for each in results if (value := getattr(each, name)) is not None]
    return values if len(values) == len(results) else []


def _geometry_cell(row: Row, name: str) -> str:
    values, decimals = _of(row.results, name), QUANTITIES[name][1]
    if not values:
        return ""
    deviation = f" ± {stdev(values):.{decimals}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{decimals}f}{deviation}"
