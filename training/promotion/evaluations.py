"""Scores of a bundle, from its manifest and from attached evaluations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from models.bundle.bundle import REPORT, Bundle
from training.checkpoints.publish import STS_MEAN
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS
from training.evaluation.report.evaluated import FORMAT, ReportError
from training.evaluation.report.page import render
from training.evaluation.retrieval import NDCG10
from training.promotion.ledger import PromotionError

FAMILIES = {"sts": tuple(STS_TASKS), "transfer": tuple(TRANSFER_TASKS)}
"""Tasks of each family. The keys are the families' names for `--require`."""
SCORES = {"sts": ("spearman", "all"), "transfer": ("accuracy",)}
"""Keys of a task's score in an evaluation, by family."""
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that the report can raise if its input is not an evaluation."""

Evaluation = Mapping[str, Any]


def read_evaluations(bundle: Bundle, files: Sequence[Path]) -> list[Evaluation]:
    """Return the evaluations in `files`, followed by the evaluations in the bundle's own report.

    Repeated evaluations are left out. An evaluation in the bundle's report is left out if its fingerprint is not the
    bundle's.

    Raises:
        PromotionError: a file can't be read, is not an evaluation, or can't be shown on a page; or an evaluation has no
            fingerprint; or one of `files` evaluates a different encoder.
    """
    own = [bundle.folder / REPORT] if REPORT in bundle.manifest.files else []
    found: list[Evaluation] = []
    for file in [*files, *own]:
        for evaluation in _read(file):
            told = evaluation["subject"].get("fingerprint")
            if told is None:
                raise PromotionError(f"{file}: contains no fingerprint of the evaluated encoder")
            # Reports that were written before prompts became part of the fingerprint contain an older fingerprint.
            if told != bundle.manifest.fingerprint and file in own:
                continue
            if told != bundle.manifest.fingerprint:
                raise PromotionError(
                    f"{file}: evaluates another encoder, {told}, instead of {bundle.manifest.fingerprint}"
                )
            if evaluation not in found:
                found.append(evaluation)
    return found


def scores(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """Return the scores of all evaluations, by the names that manifests use.

    If several evaluations have a score of the same name, the score of the first one is returned.
    """
    return {name: score for each in reversed(evaluations) for name, score in _scores(each)}


def scored_tasks(bundle: Bundle, evaluations: Sequence[Evaluation]) -> set[str]:
    """Return the names of all tasks that have a numeric score, in the bundle's manifest or in `evaluations`.

    If a retrieval collection has a score, the result includes the collection's name and the name `retrieval`.
    """
    own = {name for name, score in (bundle.manifest.scores or {}).items() if _is_score(score)}
    tasks = own | scores(evaluations).keys()
    collections = {name.removesuffix(f" {NDCG10}") for name in tasks if name.endswith(f" {NDCG10}")}
    return tasks | collections | ({"retrieval"} if collections else set())


def missing_tasks(required: Sequence[str], tasks: set[str]) -> list[str]:
    """Return the required tasks that are not in `tasks`. A family such as `sts` stands for all its tasks."""
    wanted = [task for name in required for task in FAMILIES.get(name, (name,))]
    return [task for task in dict.fromkeys(wanted) if task not in tasks]


def _read(file: Path) -> list[Evaluation]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromotionError(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PromotionError(f"{file}: not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PromotionError(f"{file}: not an evaluation of format {FORMAT}")
    evaluations = content.get("evaluations", [content])
    if not isinstance(evaluations, list):
        raise PromotionError(f"{file}: evaluations is not a list")
    _check_showable(evaluations, str(file))
    return evaluations


def _check_showable(evaluations: Sequence[Evaluation], files: str) -> None:
    """Check, before any measurement, that the evaluations can be shown on a page and written as JSON.

    Raises:
        PromotionError: an evaluation can't be shown or written; the message begins with `files`.
    """
    try:
        render(evaluations).encode()
        json.dumps(evaluations, ensure_ascii=False, allow_nan=False).encode()
    except ReportError as error:
        raise PromotionError(f"{files}: {error}") from error
    except MALFORMED as error:
        raise PromotionError(f"{files}: can't be shown ({type(error).__name__}: {error})") from error


def _scores(evaluation: Evaluation) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each score that is a finite number.

    Any other value is skipped. For example, a score may be missing or null.
    """
    collections = evaluation.get("retrieval") or {}
    places = {
        STS_MEAN: ("sts", "mean"),
        **{name: (family, "tasks", name, *SCORES[family]) for family, names in FAMILIES.items() for name in names},
        **{f"{name} {NDCG10}": ("retrieval", name, "ndcg10") for name in collections},
    }
    for name, place in places.items():
        if _is_score(score := _at(evaluation, place)):
            yield name, float(score)


def _at(score: object, path: Sequence[str]) -> object:
    for name in path:
        score = score.get(name) if isinstance(score, dict) else None
    return score


def _is_score(score: object) -> TypeGuard[float]:
    return isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score)
