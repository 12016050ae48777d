"""Scores of each single task, as in the papers' tables."""

from __future__ import annotations

from training.study.summary import DECIMALS, Row, Spread, Summary


def task_grid(summary: Summary) -> list[list[str]]:
    """Return the header and a row for each arm. With a single task return nothing, because the task equals the mean."""
    if len(summary.tasks) < 2:
        return []
    return [
        ["arm", *summary.tasks],
        *([row.label, *(_task_cell(row, task) for task in summary.tasks)] for row in summary.rows),
    ]


def task_explanation(summary: Summary) -> str:
    return f"{summary.metric.unit} of each task, mean ± standard deviation over seeds."


def _task_cell(row: Row, task: str) -> str:
    return str(Spread(tuple(round(result.scores[task], DECIMALS) for result in row.results)))
