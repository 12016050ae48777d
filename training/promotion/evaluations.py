"""What is known of how a bundle fares: scores in its manifest, and evaluations attached to it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.bundle import REPORT, Bundle
from training.evaluation.pairs import STS_TASKS
from training.promotion.ledger import PromotionError
from training.report.judged import ReportError, judge

FORMAT = 1
FAMILIES: dict[str, tuple[str, ...]] = {
    "sts": tuple(STS_TASKS),
    "transfer": ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"),
}
"""What `--require` may call by one name."""
NO_TASKS = {"format", "command", "created", "subject", "environment", "speed", "precisions", "curve", "best_step"}

Evaluation = Mapping[str, Any]


def attached(bundle: Bundle, files: Sequence[Path]) -> list[Evaluation]:
    """The evaluations in `files`, then those in the report that the bundle carries already.

    Raises:
        PromotionError: a file can't be read, is no evaluation, or is one of another encoder.
    """
    own = [bundle.folder / REPORT] if REPORT in bundle.manifest.files else []
    found: list[Evaluation] = []
    for file in [*files, *own]:
        for evaluation in _read(file):
            subject = evaluation.get("subject")
            told = subject.get("fingerprint") if isinstance(subject, dict) else None
            if told is not None and told != bundle.manifest.fingerprint:
                raise PromotionError(f"{file}: evaluates another encoder, {told}, not {bundle.manifest.fingerprint}")
            if evaluation not in found:
                found.append(evaluation)
    return found


def present(bundle: Bundle, evaluations: Sequence[Evaluation]) -> set[str]:
    """The tasks that have a score."""
    tasks = {name for name, score in (bundle.manifest.scores or {}).items() if _is_score(score)}
    for evaluation in evaluations:
        for family, content in evaluation.items():
            if family in NO_TASKS or not isinstance(content, dict) or not content:
                continue
            named = content.get("tasks", content)
            tasks |= {name for name, score in named.items() if score is not None} if isinstance(named, dict) else set()
            tasks |= {family} if family not in FAMILIES else set()
    return tasks


def missing(required: Sequence[str], tasks: set[str]) -> list[str]:
    """Of the required tasks those without a score, families spelt out."""
    wanted = [task for name in required for task in FAMILIES.get(name, (name,))]
    return [task for task in dict.fromkeys(wanted) if task not in tasks]


def _read(file: Path) -> list[Evaluation]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromotionError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise PromotionError(f"{file}: not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PromotionError(f"{file}: not an evaluation of format {FORMAT}")
    evaluations = content.get("evaluations", [content])
    try:
        if evaluations:
            judge(evaluations)
    except (ReportError, TypeError, AttributeError) as error:
        raise PromotionError(f"{file}: {error}") from error
    return list(evaluations)


def _is_score(score: object) -> bool:
    return isinstance(score, int | float) and math.isfinite(score)
