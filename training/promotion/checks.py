"""Checks that a bundle must pass before it is served, and the decision that follows from their results.

The result of a check has a verdict, numbers, and a sentence for the user.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnxruntime

from models import cpus
from models.bundle import bundle
from models.bundle.bundle import FP32, MANIFEST, Bundle, BundleError
from models.runtimes.graph import Graph, golden_cosine
from training.evaluation.bootstrap import LEVEL
from training.evaluation.vectors import Encode
from training.promotion.evaluations import Evaluation, missing_tasks, scored_tasks
from training.promotion.ledger import Outcome
from training.promotion.yardsticks import Scored, Yardstick

GOLDEN_FP32 = 0.9999
GOLDEN_REDUCED = bundle.GOLDEN_COSINE
"""Minimum cosines to a golden vector: for an fp32 graph, and for a graph of reduced precision."""

NOT_WORSE = "not worse"


@dataclass(frozen=True)
class Evaluator:
    """Yardstick (metric and test data) by which the checks compare encoders, and a progress display for encoding."""

    yardstick: Yardstick
    with_progress: Callable[[Encode], Encode]
    """Function that adds a progress display to an `Encode`."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check of a promotion."""

    name: str
    passed: bool
    says: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    forcible: bool = False
    """True if `--force` can override the check. A margin can be overridden. A failed evaluation can't."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON, with None for numbers that are not finite."""
        return asdict(self) | {"numbers": without_nonfinite(dict(self.numbers))}


def failure(name: str, reason: str) -> Check:
    return Check(name=name, passed=False, says=f"the check failed with an error: {reason}")


def verified(folder: Path) -> tuple[Check, Bundle | None]:
    """Check that every file of the bundle in `folder` exists and matches its hash.

    Return the check and the bundle. The bundle is None if the check failed.

    Raises:
        BundleError: the folder has no manifest, so it is not a bundle.
    """
    name = "verified"
    if not (folder / MANIFEST).is_file():
        raise BundleError(f"{folder / MANIFEST}: missing; is this the folder of a bundle?")
    try:
        found = bundle.load(folder)
        _ = found.int8_limit, found.matryoshka  # Servers read these settings, too.
    except BundleError as error:
        return Check(name=name, passed=False, says=str(error)), None
    files = len(found.manifest.files)
    return Check(name=name, passed=True, says=f"{files} files verified", numbers={"files": files}), found


def golden(candidate: Bundle) -> Check:
    """Check that every graph of the bundle reproduces the manifest's golden vectors, which are reference vectors."""
    name = "golden vectors"
    cosines: dict[str, float] = {}
    for precision in candidate.graphs:
        try:
            cosines[precision] = golden_cosine(candidate, precision=precision)
        # An unusable bundle can cause any error. Here, the message can name the precision.
        except Exception as error:
            return Check(name=name, passed=False, says=f"{precision}: {error}", numbers=cosines)
    floors = {precision: GOLDEN_FP32 if precision == FP32 else GOLDEN_REDUCED for precision in cosines}
    low = [precision for precision, cosine in cosines.items() if not cosine >= floors[precision]]
    listed = ", ".join(f"{precision} {cosine:.6f}" for precision, cosine in cosines.items())
    below = "".join(f"; {precision} is below {floors[precision]}" for precision in low)
    says = f"lowest cosine: {listed}{below}"
    return Check(name=name, passed=not low, says=says, numbers=cosines)


def required(candidate: Bundle, evaluations: Sequence[Evaluation], names: Sequence[str]) -> Check:
    """Check that every task in `names` has a score, in the candidate's manifest or in `evaluations`."""
    lacking = missing_tasks(names, scored_tasks(candidate, evaluations))
    says = f"no score of {', '.join(lacking)}" if lacking else f"{', '.join(names) or 'none'} required, none missing"
    numbers = {"required": list(names), "missing": lacking}
    return Check(name="required tasks", passed=not lacking, says=says, numbers=numbers, forcible=True)


def not_worse(
    candidate: Bundle, judges: Evaluator, *, margin: float, incumbent: Bundle | None, broken: bool, best: float | None
) -> Check:
    """Check the candidate's score against two scores: the served bundle's score, and `best`.

    The candidate's score may be at most `margin` points below each of the two scores. All comparisons use float32 on
    ONNX Runtime.

    Args:
        incumbent: served bundle, or None if it fails verification or nothing is served.
        broken: True if the served bundle fails verification. This check then fails, too.
        best: highest recorded score of the current and earlier served bundles, with the same metric and test data, or
            None. The comparison with this score prevents a gradual decline over several promotions.
    """
    yardstick = judges.yardstick
    ours = yardstick.judge(judges.with_progress(Graph(candidate).encode), candidate.manifest.prompts)
    numbers: dict[str, Any] = {
        "metric": yardstick.metric,
        "sample": yardstick.sample,
        "candidate": ours.score,
        "margin": margin,
        "best": best,
    }
    scored = f"{yardstick.metric} {ours.score:.2f}"
    if not math.isfinite(ours.score):
        return Check(name=NOT_WORSE, passed=False, says=f"{scored}: no score", numbers=numbers)
    passed, against, measured = _against(ours, judges, margin, incumbent, broken)
    numbers |= measured
    if best is not None and ours.score < best - margin:
        passed = False
        against += f"; below the best score that was served, {best:.2f}, by more than the margin"
    return Check(name=NOT_WORSE, passed=passed, says=f"{scored}{against}", numbers=numbers, forcible=True)


def _against(
    ours: Scored, judges: Evaluator, margin: float, incumbent: Bundle | None, broken: bool
) -> tuple[bool, str, dict[str, Any]]:
    """Compare the candidate's score `ours` with the score of the served bundle.

    `broken` is True if the served bundle fails verification. `incumbent` is the served bundle, or None.

    Returns:
        Whether the candidate passes, text that is appended to the check's message, and the comparison's numbers.
    """
    if broken:
        return False, "; the served bundle fails verification, so there is nothing to compare with", {}
    if incumbent is None:
        return True, "; nothing is served yet", {}
    try:
        theirs = judges.yardstick.judge(judges.with_progress(Graph(incumbent).encode), incumbent.manifest.prompts)
    # An unusable bundle can cause any error. Here, the error is the served bundle's and not the candidate's.
    except Exception as error:
        return False, f"; the served bundle can't be evaluated: {error}", {}
    between = judges.yardstick.compare(ours, theirs)
    says = (
        f" against {theirs.score:.2f} of the served bundle: {between.difference:+.2f} "
        f"({100 * LEVEL:g} % interval {between.low:+.2f} to {between.high:+.2f}), margin {margin:g}"
    )
    return between.difference >= -margin, says, {"incumbent": theirs.score, "level": LEVEL, **asdict(between)}


def without_nonfinite(value: Any) -> Any:
    """Replace every number that is not finite by None, because JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: without_nonfinite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_nonfinite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# The decision about a candidate: a line of the ledger, and a part of the served report.


def now() -> str:
    """Return the current time in UTC, in the ledger's format (ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A promotion or refusal, with the results of all checks."""

    candidate: dict[str, Any]
    incumbent: dict[str, Any] | None
    checks: Sequence[Check]
    force: bool
    copy: str | None = None
    """Name of the promoted copy."""
    time: str = field(default_factory=now)

    @property
    def failed(self) -> list[Check]:
        """Return the checks that failed."""
        return [check for check in self.checks if not check.passed]

    @property
    def outcome(self) -> Outcome:
        """Return "promoted" if every check passed or `--force` overrides the failed ones, else "refused"."""
        passes = not self.failed or (self.force and all(check.forcible for check in self.failed))
        return "promoted" if passes else "refused"

    def to_json(self) -> dict[str, Any]:
        """Return the decision as a line of the ledger."""
        differences = [check.numbers["difference"] for check in self.checks if "difference" in check.numbers]
        difference = differences[0] if differences else None
        return {
            "time": self.time,
            "outcome": self.outcome,
            "candidate": self.candidate,
            "incumbent": self.incumbent,
            "winner": None if not difference else "candidate" if difference > 0 else "incumbent",
            "by": None if difference is None else abs(difference),
            "checks": [check.to_json() for check in self.checks],
            "failed": [check.name for check in self.failed],
            "forced": self.outcome == "promoted" and bool(self.failed),
            "copy": self.copy,
            "host": host(),
        }


def describe_bundle(path: Path, found: Bundle | None, **facts: Any) -> dict[str, Any]:
    """Return the bundle's path, name and fingerprint for the ledger, together with `facts`.

    If `found` is None, the bundle is damaged. Its name and fingerprint are then None.
    """
    name, fingerprint = (found.manifest.name, found.manifest.fingerprint) if found else (None, None)
    return {"path": str(path), "name": name, "fingerprint": fingerprint, **facts}


def host() -> dict[str, Any]:
    """Return facts about this machine for the ledger, because measured speeds depend on the machine."""
    return {
        "name": platform.node(),
        "platform": platform.platform(),
        "cpus": cpus.available(),
        "onnxruntime": onnxruntime.__version__,
    }
