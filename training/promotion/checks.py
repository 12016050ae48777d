"""What a bundle must show before it is served: each check with its numbers and a sentence that says what came out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from models import bundle
from models.bundle import FP32, MANIFEST, Bundle, BundleError
from models.runtimes.graph import Graph
from models.verify import golden_cosine
from training.evaluation.vectors import Encode
from training.promotion.evaluations import Evaluation, missing, present
from training.promotion.yardsticks import LEVEL, Judged, Yardstick

GOLDEN_FP32 = 0.9999
GOLDEN_REDUCED = bundle.GOLDEN_COSINE
"""The lowest cosine to a golden vector."""

NOT_WORSE = "not worse"


@dataclass(frozen=True)
class Judges:
    """By what encoders are compared."""

    yardstick: Yardstick
    watched: Callable[[Encode], Encode]
    """An `Encode` made to say how far it is."""

    def encode(self, source: Bundle) -> Encode:
        """One runner for all of them: float32 on ONNX Runtime."""
        return self.watched(Graph(source).encode)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What the candidate must not be below by more than the margin."""

    margin: float
    """In points."""
    incumbent: Bundle | None
    broken: bool
    """What is served does not verify."""
    best: float | None
    """The best score that was served by the same yardstick, in points: margins don't add up."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One condition of a promotion."""

    name: str
    passed: bool
    says: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    forcible: bool = False
    """Whether `--force` may pass over it: a margin is a choice, an encoder that can't be judged is none."""

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that are not finite become null."""
        return asdict(self) | {"numbers": finite(dict(self.numbers))}


def attempted(name: str, check: Callable[[], Check]) -> Check:
    """What `check` finds, or that it could not be made: a bundle whose graph does not run must not be served."""
    try:
        return check()
    except Exception as error:  # ONNX Runtime's errors have no class in common
        return Check(name=name, passed=False, says=f"could not be made: {error}")


def verified(folder: Path) -> tuple[Check, Bundle | None]:
    """Every file is there and has its hash.

    Raises:
        BundleError: there is no manifest, so that nothing here can be a bundle.
    """
    name = "verified"
    if not (folder / MANIFEST).is_file():
        raise BundleError(f"{folder / MANIFEST}: missing; is this the folder of a bundle?")
    try:
        found = bundle.load(folder)
    except BundleError as error:
        return Check(name=name, passed=False, says=str(error)), None
    files = len(found.manifest.files)
    return Check(name=name, passed=True, says=f"{files} files verified", numbers={"files": files}), found


def golden(candidate: Bundle) -> Check:
    """Every graph still gives the vectors that the manifest remembers."""
    name = "golden vectors"
    cosines: dict[str, float] = {}
    for precision in candidate.graphs:
        try:
            cosines[precision] = golden_cosine(candidate, precision=precision)
        except Exception as error:  # as in `attempted`, and here the precision is known
            return Check(name=name, passed=False, says=f"{precision}: {error}", numbers=cosines)
    floors = {precision: GOLDEN_FP32 if precision == FP32 else GOLDEN_REDUCED for precision in cosines}
    low = [precision for precision, cosine in cosines.items() if not cosine >= floors[precision]]
    listed = ", ".join(f"{precision} {cosine:.6f}" for precision, cosine in cosines.items())
    below = "".join(f"; {precision} is below {floors[precision]}" for precision in low)
    says = f"lowest cosine: {listed}{below}"
    return Check(name=name, passed=not low, says=says, numbers=cosines)


def required(candidate: Bundle, evaluations: Sequence[Evaluation], names: Sequence[str]) -> Check:
    """Every required task has a score."""
    lacking = missing(names, present(candidate, evaluations))
    says = f"no score of {', '.join(lacking)}" if lacking else f"{', '.join(names) or 'none'} required, none missing"
    return Check(
        name="required tasks",
        passed=not lacking,
        says=says,
        numbers={"required": list(names), "missing": lacking},
        forcible=True,
    )


def not_worse(candidate: Bundle, bar: Bar, judges: Judges) -> Check:
    """The candidate is not below the incumbent, embedded now by the same runner, nor below the best served so far."""
    yardstick = judges.yardstick
    ours = yardstick.judge(judges.encode(candidate), candidate.manifest.prompts)
    numbers: dict[str, Any] = {
        "metric": yardstick.metric,
        "sample": yardstick.sample,
        "candidate": ours.score,
        "margin": bar.margin,
        "best": bar.best,
    }
    scored = f"{yardstick.metric} {ours.score:.2f}"
    if not math.isfinite(ours.score):
        return Check(name=NOT_WORSE, passed=False, says=f"{scored}: no score", numbers=numbers)
    passed, against, measured = _against(ours, bar, judges)
    numbers |= measured
    if bar.best is not None and ours.score < bar.best - bar.margin:
        passed, against = False, f"{against}; below {bar.best:.2f}, the best served so far, by more than the margin"
    return Check(name=NOT_WORSE, passed=passed, says=f"{scored}{against}", numbers=numbers, forcible=True)


def _against(ours: Judged, bar: Bar, judges: Judges) -> tuple[bool, str, dict[str, Any]]:
    """Whether the incumbent lets it pass, in words, and in numbers."""
    if bar.broken:
        return False, "; what is served does not verify, so there is nothing to compare with", {}
    if bar.incumbent is None:
        return True, "; nothing is served yet", {}
    try:
        theirs = judges.yardstick.judge(judges.encode(bar.incumbent), bar.incumbent.manifest.prompts)
    except Exception as error:  # as in `attempted`, but here what is served is at fault
        return False, f"; what is served can't be judged: {error}", {}
    between = judges.yardstick.compare(ours, theirs)
    says = (
        f" against {theirs.score:.2f} of the incumbent: {between.difference:+.2f} "
        f"({100 * LEVEL:g} % interval {between.low:+.2f} to {between.high:+.2f}), margin {bar.margin:g}"
    )
    return between.difference >= -bar.margin, says, {"incumbent": theirs.score, "level": LEVEL, **asdict(between)}


def finite(value: Any) -> Any:
    """`value` with null for every number that is not finite, for JSON has none of these."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
