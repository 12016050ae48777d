"""The score of each task by itself, as the papers' tables have them."""

from __future__ import annotations

from training.study.summary import DECIMALS, Row, Spread, Summary


def grid(summary: Summary) -> list[list[str]]:
    """The head and a line for each arm; nothing of a single task, whose mean it is."""
    if len(summary.tasks) < 2:
        return []
    return [
        ["arm", *summary.tasks],
        *([row.label, *(_cell(row, task) for task in summary.tasks)] for row in summary.rows),
    ]


def explanation(summary: Summary) -> str:
    """What the numbers are."""
    return f"{summary.metric.unit} of each task, mean ± standard deviation over seeds."


def _cell(row: Row, task: str) -> str:
    return str(Spread(tuple(round(result.scores[task], DECIMALS) for result in row.results)))
