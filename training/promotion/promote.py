"""Promotion: check a bundle, and serve it if it passes all checks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from models.bundle import card, origin
from models.bundle.bundle import CARD, FP32, REPORT, REPORT_PAGE, Bundle
from training.checkpoints.progress import with_progress
from training.evaluation.report.evaluated import FORMAT
from training.evaluation.report.page import render
from training.evaluation.report.published import papers
from training.evaluation.subjects import bundle_facts
from training.promotion import checks, evaluations
from training.promotion.checks import Decision, Evaluator, describe_bundle, host
from training.promotion.engines import Engines, Machine, check_engines
from training.promotion.evaluations import Evaluation
from training.promotion.history import describe_served, recover_lost_line, remove_old_copies, with_copy
from training.promotion.ledger import PromotionError
from training.promotion.place import SHORT, Place, copy
from training.promotion.yardsticks import Yardstick


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Conditions of a promotion."""

    margin: float = 0.5
    """Maximum points by which the candidate may be below the served bundle, and below the best bundle so far."""
    require: Sequence[str] = ()
    """Tasks, or families of tasks, that must have a score."""
    reports: Sequence[Path] = ()
    """Files of evaluations to attach to the bundle."""
    force: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise PromotionError(f"--margin {self.margin:g}: must be a number of points, 0 or more")


def promote(
    candidate: Path,
    place: Place,
    terms: Terms,
    yardstick: Callable[[], Yardstick],
    *,
    stream: TextIO,
    machine: Machine,
) -> Decision:
    """Check the bundle `candidate`, serve it if it passes all checks, and record the decision in the ledger.

    If the candidate is refused, only the ledger changes. `terms.force` can override some failed checks.

    Raises:
        BundleError: `candidate` is not a bundle.
        PromotionError: the candidate is served already, an attached evaluation is unusable, or the ledger is damaged.
        DataError, CorpusError: the data for the comparison are missing or broken.
    """
    with place.locked(stream):
        recover_lost_line(place)
        first, found = checks.verified(candidate)
        served, incumbent = describe_served(place)
        decision = Decision(
            candidate=describe_bundle(candidate, found), incumbent=served, checks=[first], force=terms.force
        )
        if found is not None:
            if incumbent is not None and found.folder.resolve() == incumbent.folder.resolve():
                raise PromotionError(f"{candidate}: {place.default} already serves this bundle")
            attached = evaluations.read_evaluations(found, terms.reports)
            judges = Evaluator(yardstick(), partial(with_progress, stream=stream))
            best = place.ledger.best(judges.yardstick.metric, judges.yardstick.sample)
            broken = bool(served) and not incumbent
            rest = [checks.golden(found), checks.required(found, attached, terms.require)]
            try:
                compared = checks.not_worse(
                    found, judges, margin=terms.margin, incumbent=incumbent, broken=broken, best=best
                )
            except Exception as error:  # An unusable bundle can cause any error, and the runtimes' have no common base.
                compared = checks.failure(checks.NOT_WORSE, str(error))
            rest.append(compared)
            engines = check_engines(found, judges, machine)
            decision = replace(decision, checks=[first, *rest, engines.check])
            if decision.outcome == "promoted":
                measured = {judges.yardstick.named: compared.numbers["candidate"]} if judges.yardstick.named else {}
                known = (found.manifest.scores or {}) | measured | evaluations.scores(attached)
                decision = _serve(
                    found, incumbent, decision, place=place, attached=attached, scores=known, engines=engines
                )
        place.ledger.append(decision.to_json())
        if decision.outcome == "promoted":
            remove_old_copies(place)
        return decision


def _serve(
    candidate: Bundle,
    incumbent: Bundle | None,
    decision: Decision,
    *,
    place: Place,
    attached: Sequence[Evaluation],
    scores: Mapping[str, float],
    engines: Engines,
) -> Decision:
    """Copy the candidate, serve the copy, and return the decision with the names of both bundles' copies.

    If the incumbent has no copy yet, it is copied first. The served path is changed last. If a crash comes before that,
    the incumbent stays served.
    """
    served = with_copy(place, decision.incumbent, incumbent)
    name = place.free_name(candidate.manifest.fingerprint[:SHORT])
    decision = replace(decision, incumbent=served, copy=name)
    added = _report(candidate, attached, decision) | _card(candidate, scores) | engines.documents(candidate)
    made = copy(candidate, place.copies / name, dropped=engines.dropped(candidate), added=added, scores=scores)
    engines.remember(made)
    place.serve(name)
    return decision


def _card(candidate: Bundle, scores: Mapping[str, float]) -> dict[str, bytes]:
    """Return the candidate's model card with the current scores, as {file name: content}."""
    folder = candidate.folder.resolve()  # The resolved path can't be mistaken for a name such as minilm.
    said = origin.read(str(folder), folder)
    return {CARD: card.text(replace(candidate.manifest, scores=dict(scores)), said).encode()}


def _report(candidate: Bundle, attached: Sequence[Evaluation], decision: Decision) -> dict[str, bytes]:
    listed = list(attached) or [_evaluation(candidate, decision)]
    content = {
        "format": FORMAT,
        "evaluations": listed,
        "papers": papers(str(each["subject"].get("backbone") or "") for each in listed),
        "promotion": decision.to_json(),
    }
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    return {REPORT: text.encode(), REPORT_PAGE: render(listed).encode()}


def _evaluation(candidate: Bundle, decision: Decision) -> Evaluation:
    """Return a minimal evaluation, for the report page of a bundle that has no evaluation."""
    engine = f"onnxruntime {host()['onnxruntime']}"
    return {
        "format": FORMAT,
        "command": "isosphere promote",
        "created": decision.time,
        "subject": bundle_facts(candidate, decision.candidate["path"], engine=engine, precision=FP32),
    }
