"""What is known of how a bundle fares: scores in its manifest, and evaluations attached to it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from models.bundle import REPORT, Bundle
from training.evaluation.pairs import STS_TASKS
from training.evaluation.retrieval import NDCG10
from training.promotion.ledger import PromotionError
from training.publish import STS_MEAN
from training.report.judged import ReportError
from training.report.page import render

FORMAT = 1
FAMILIES: dict[str, tuple[str, ...]] = {
    "sts": tuple(STS_TASKS),
    "transfer": ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"),
}
"""What `--require` may call by one name."""
SCORES = {"sts": ("spearman", "all"), "transfer": ("accuracy",)}
"""Where an evaluation has the score of a task of each family."""
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a page is answered with that is made from anything but an evaluation."""

Evaluation = Mapping[str, Any]


def attached(bundle: Bundle, files: Sequence[Path]) -> list[Evaluation]:
    """The evaluations in `files`, then those in the report that the bundle carries already.

    Raises:
        PromotionError: a file can't be read or shown, is no evaluation, or does not say that it is one of this encoder.
    """
    own = [bundle.folder / REPORT] if REPORT in bundle.manifest.files else []
    found: list[Evaluation] = []
    for file in [*files, *own]:
        for evaluation in _read(file):
            told = evaluation["subject"].get("fingerprint")
            if told is None:
                raise PromotionError(f"{file}: names no fingerprint of the encoder that it evaluates")
            if told != bundle.manifest.fingerprint and file in own:  # of before prompts were part of it
                continue
            if told != bundle.manifest.fingerprint:
                raise PromotionError(f"{file}: evaluates another encoder, {told}, not {bundle.manifest.fingerprint}")
            if evaluation not in found:
                found.append(evaluation)
    if found:
        _shown(found, ", ".join(map(str, [*files, *own])))
    return found


def scores(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """What they say, by the names that a manifest has for it; of a score that several have, the first one's."""
    return {name: score for each in reversed(evaluations) for name, score in _scores(each)}


def present(bundle: Bundle, evaluations: Sequence[Evaluation]) -> set[str]:
    """The tasks that have a number as their score; `retrieval` is there with any of its collections."""
    own = {name for name, score in (bundle.manifest.scores or {}).items() if _is_score(score)}
    tasks = own | scores(evaluations).keys()
    collections = {name.removesuffix(f" {NDCG10}") for name in tasks if name.endswith(f" {NDCG10}")}
    return tasks | collections | ({"retrieval"} if collections else set())


def missing(required: Sequence[str], tasks: set[str]) -> list[str]:
    """Of the required tasks those without a score, families spelt out."""
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
    _shown(evaluations, str(file))
    return evaluations


def _shown(evaluations: Sequence[Evaluation], files: str) -> None:
    """A page and a file can be made of them: tried before anything is measured, so that nothing is in vain."""
    try:
        render(evaluations).encode()
        json.dumps(evaluations, ensure_ascii=False, allow_nan=False).encode()
    except ReportError as error:
        raise PromotionError(f"{files}: {error}") from error
    except MALFORMED as error:
        raise PromotionError(f"{files}: can't be shown ({type(error).__name__}: {error})") from error


def _scores(evaluation: Evaluation) -> Iterator[tuple[str, float]]:
    """Only numbers: an evaluation is whatever a file holds."""
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
