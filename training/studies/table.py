"""Text tables of a study's summaries, with explanations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from training.evaluation.bootstrap import LEVEL
from training.studies.results import Result
from training.studies.summary import CRITERIA, DECIMALS, Row, SeedScores, Summary

HEAD = ("arm", "seeds", "mean", "STS-B dev", "gain", "95 % interval", "P(better)", "verdict")
MEAN, DEV = HEAD.index("mean"), HEAD.index("STS-B dev")


def table(*summaries: Summary) -> str:
    """Format a table of scores and a table of single tasks for each summary, with explanations.

    The last table has the geometry of the vectors, from the first summary.
    """
    parts = []
    for summary in summaries:
        parts.append(_aligned(grid(summary), explanation(summary)))
        if lines := task_grid(summary):
            parts.append(_aligned(lines, task_explanation(summary)))
    if lines := geometry_grid(summaries[0]):
        parts.append(_aligned(lines, EXPLANATION))
    return "\n\n".join(parts)


def _aligned(lines: Sequence[Sequence[str]], said: str) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join([*text, "", said])


def grid(summary: Summary) -> list[list[str]]:
    """Return the main table: a header, and a row for each arm.

    The column `STS-B dev` is left out if the summary's metric has no dev task.
    """
    head = [*HEAD[:MEAN], summary.measure, *HEAD[MEAN + 1 :]]
    lines = [head, *(cells(row) for row in summary.rows)]
    return lines if summary.metric.dev else [line[:DEV] + line[DEV + 1 :] for line in lines]


def cells(row: Row) -> list[str]:
    gain = row.gain
    compared = ["", "", ""]
    if gain:
        difference, low, high = map(_signed, (gain.difference, gain.low, gain.high))
        compared = [difference, f"[{low}, {high}]", "" if gain.better is None else f"{gain.better:.3f}"]
    dev = "" if row.dev is None else str(row.dev)
    return [row.label, str(len(row.results)), str(row.mean), dev, *compared, row.verdict]


def explanation(summary: Summary) -> str:
    """Return a text that explains the main table's numbers, and names the arms with no proven gain or loss."""
    metric = summary.metric
    undecided = [row.label for row in summary.rows if row.undecided]
    compared = sum(row.gain is not None for row in summary.rows)
    said = (
        f" Comparisons made: {compared}, each with its own level of {LEVEL:.0%}. Of twenty arms that equal "
        f"{summary.against}, about one will therefore seem better or worse."
        if compared
        else ""
    )
    said += f" The interval contains 0, so no difference is shown, for: {'; '.join(undecided)}." if undecided else ""
    vain = [row.label for row in summary.rows if any(each.curve and each.best_step == 0 for each in row.results)]
    if vain:
        said += f" In some runs, no step was better than the initial encoder: {'; '.join(vain)}."
    for criterion, name in CRITERIA.items():
        if found := summary.agreement(criterion):
            said += f" Rank correlation of {name} with the score over {found[1]} runs: {found[0]:.2f}."
    means = f"{metric.unit}, mean ± standard deviation over seeds; tasks of the mean: {', '.join(summary.tasks)}."
    return f"{means}{''.join(_gains(summary))}{said}"


def _gains(summary: Summary) -> Iterator[str]:
    """Yield an explanation for each kind of gain: gains with a bootstrap interval, and gains with Welch's interval."""
    metric, compared = summary.metric, [row for row in summary.rows if row.gain]
    over_seeds = [row.label for row in compared if row.gain and row.gain.better is None]
    if not over_seeds or len(over_seeds) < len(compared):
        yield (
            f" Gain, interval and P(better) compare an arm with {summary.against} by a paired bootstrap of the "
            f"{metric.examples}, with fixed {metric.fixed}. Seeds are another source of chance: a gain is within the "
            "seeds' noise if Welch's t-test finds no difference of the arms' means (a one-sample t-test against an "
            "untrained encoder)."
        )
    if over_seeds:
        yield (
            f" The gain over {summary.against} has the interval of Welch's t-test over seeds, for: "
            f"{'; '.join(over_seeds)}. A bootstrap of the {metric.examples} needs their scores, which are not stored "
            "here for these arms or the baseline."
        )


def _signed(value: float) -> str:
    return f"{round(value, DECIMALS) + 0.0:+.2f}"  # Adding 0.0 turns -0.0 into 0.0.


# Scores of each single task, as in the papers' tables.


def task_grid(summary: Summary) -> list[list[str]]:
    """Return a table with a row for each arm and a column for each task of the summary, with a header.

    If the summary has only one task, return [].
    """
    if len(summary.tasks) < 2:
        return []
    lines = [["arm", *summary.tasks]]
    for row in summary.rows:
        scores = [tuple(round(each.scores[task], DECIMALS) for each in row.results) for task in summary.tasks]
        lines.append([row.label, *(str(SeedScores(of)) for of in scores)])
    return lines


def task_explanation(summary: Summary) -> str:
    return f"{summary.metric.unit} of each task, mean ± standard deviation over seeds."


# Geometry of each arm's vectors, which papers use to explain scores.

QUANTITIES = {
    "alignment": ("alignment", 3),
    "uniformity": ("uniformity", 2),
    "effective_rank": ("effective rank", 0),
    "removed_share": ("removed negatives", 5),
}
"""Fields of a result, with column title and number of decimals."""

EXPLANATION = (
    "Measured on STS-B dev's sentences with the evaluated weights; mean ± standard deviation over seeds. Alignment: "
    "the mean squared distance of pairs scored above 4. Uniformity: from 0, a single point, to -4, orthogonal. "
    "Effective rank: the number of directions that the vectors use, at most their width. Removed negatives: the share "
    "of the in-batch negatives that DCLR's weights left out while training."
)


def geometry_grid(summary: Summary) -> list[list[str]]:
    """Return the table of the vectors' geometry: a header, and a row for each arm. Return [] if no run has geometry."""
    known = [name for name in QUANTITIES if any(_of(row.results, name) for row in summary.rows)]
    head = ["arm", *(QUANTITIES[name][0] for name in known)]
    arms = [[row.label, *(_geometry_cell(row, name) for name in known)] for row in summary.rows]
    return [head, *arms] if known else []


def _of(results: Sequence[Result], name: str) -> list[float]:
    """Return the value of the field `name` in each result, or an empty list if a result lacks this value."""
    values = [value for each in results if (value := getattr(each, name)) is not None]
    return values if len(values) == len(results) else []


def _geometry_cell(row: Row, name: str) -> str:
    values = tuple(_of(row.results, name))
    return SeedScores(values).rounded(QUANTITIES[name][1]) if values else ""
