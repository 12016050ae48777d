"""History of the served copies: rollback, deletion of old copies, and repair of the ledger after a crash."""

from __future__ import annotations

import json
from typing import Any, TextIO

from models.bundle import bundle
from models.bundle.bundle import GOLDEN_COSINE, REPORT, Bundle, BundleError
from models.runtimes.graph import golden_cosine
from training.promotion.checks import describe_bundle, host, now
from training.promotion.ledger import PromotionError
from training.promotion.place import SHORT, Place, copy

COPIES_KEPT = 3
"""Number of copies kept besides the served one."""


def recover_lost_line(place: Place) -> None:
    """Add the line about the served copy to the ledger, if the line is missing after a crash.

    If the ledger and the link to the served copy disagree, the link is correct.

    Raises:
        PromotionError: the ledger is damaged.
    """
    served, current = place.ledger.served(), place.current()
    if current is None or served[-1:] == [current] or not place.default.exists():
        return
    outcome = "rolled back" if current in served else "promoted"
    facts = {"time": now(), "outcome": outcome, "copy": current, "incumbent": {"copy": served[-1]} if served else None}
    decided = _recorded_decision(place, current) if outcome == "promoted" else {}
    place.ledger.append(facts | decided | {"recovered": True, "host": host()})


def remove_old_copies(place: Place) -> None:
    """Remove old copies of bundles, but keep the served copy and the last `COPIES_KEPT` copies served before it."""
    served = place.ledger.served()
    others = [name for name in dict.fromkeys(reversed(served)) if name != served[-1]]
    place.remove_copies({*served[-1:], *others[:COPIES_KEPT]})


def rollback(place: Place, *, stream: TextIO) -> dict[str, Any]:
    """Serve the previous bundle again, and return the ledger's line about the rollback.

    If a user has replaced the link to the served copy with a folder, the previous bundle is the last copy that the
    ledger records as served. If the user's folder is an undamaged bundle, it is copied before the link replaces it.

    Raises:
        PromotionError: the ledger is damaged or has no previous bundle, or the previous bundle is missing or fails
            verification.
        BundleError, OSError: the folder can't be copied, or the link or the ledger can't be written.
    """
    with place.locked(stream):
        recover_lost_line(place)
        served = place.ledger.served()
        facts, present = (None, None) if place.current() else describe_served(place)
        copies = served if facts else served[:-1]
        if not copies:
            raise PromotionError(f"{place.default}: there is no earlier bundle to go back to")
        target, source = copies[-1], place.copies / copies[-1]
        found = _verified_copy(place, target)
        line = {
            "time": now(),
            "outcome": "rolled back",
            "copy": target,
            "candidate": describe_bundle(source, found),
            "incumbent": with_copy(place, facts, present) or {"copy": served[-1]},
            "forced": False,
            "host": host(),
        }
        place.serve(target)
        place.ledger.append(line)
        return line


def _recorded_decision(place: Place, copy: str) -> dict[str, Any]:
    """Return the decision to promote a copy, from the report in its folder, or {} if no decision is recorded there.

    No decision is recorded if no promotion made the copy, for example if a user made the folder and linked it by hand.
    """
    file = place.copies / copy / REPORT
    report = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    decision = report.get("promotion", {})
    return dict(decision) if decision.get("copy") == copy else {}


def _verified_copy(place: Place, copy: str) -> Bundle:
    try:
        found = bundle.load(place.copies / copy)
    except BundleError as error:
        raise PromotionError(f"can't go back to the previous bundle: {error}") from error
    cosine = golden_cosine(found)
    if not cosine >= GOLDEN_COSINE:
        raise PromotionError(f"{found.folder}: cosine {cosine:.6f} to a golden vector, below {GOLDEN_COSINE}")
    return found


# The served bundle, and a copy of it if the served bundle is not yet a copy.


def describe_served(place: Place) -> tuple[dict[str, Any] | None, Bundle | None]:
    """Return the ledger's description of the served bundle, and the bundle.

    The bundle is None if it is damaged. Both results are None if nothing is served.
    """
    if not place.default.exists() and not place.default.is_symlink():
        return None, None
    try:
        found = bundle.load(place.default)
    except BundleError:
        return describe_bundle(place.default, None, copy=None), None
    return describe_bundle(place.default, found, copy=place.current()), found


def with_copy(place: Place, served: dict[str, Any] | None, found: Bundle | None) -> dict[str, Any] | None:
    """Return `served`, the description of the served bundle, with the name of this bundle's copy.

    If `served` names no copy yet, copy the served bundle `found`, because the caller will replace the bundle at the
    served path by a link to another copy. If `served` or `found` is None, `served` is returned unchanged.

    Raises:
        BundleError: the bundle has changed since it was loaded.
        OSError: the copy can't be written.
    """
    if served is None or found is None or served["copy"] is not None:
        return served
    name = place.free_name(found.manifest.fingerprint[:SHORT])
    copy(found, place.copies / name, added={})
    return served | {"copy": name}
