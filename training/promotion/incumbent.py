"""What is served now, and a copy of it where it is none yet."""

from __future__ import annotations

from typing import Any

from models import bundle
from models.bundle import Bundle, BundleError
from training.promotion.copies import copy
from training.promotion.decision import described
from training.promotion.place import SHORT, Place


def examined(place: Place) -> tuple[dict[str, Any] | None, Bundle | None]:
    """What is served, as the ledger names it, and the bundle; no bundle if it does not verify."""
    if not place.default.exists() and not place.default.is_symlink():
        return None, None
    try:
        found = bundle.load(place.default)
    except BundleError:
        return described(place.default, None, copy=None), None
    return described(place.default, found, copy=place.current()), found


def kept(place: Place, served: dict[str, Any] | None, found: Bundle | None) -> dict[str, Any] | None:
    """`served` with the name of its copy, which is made if it verifies and is none: a link will take its place.

    Raises:
        BundleError: it was altered since it was loaded.
        OSError: the copy can't be written.
    """
    if served is None or found is None or served["copy"] is not None:
        return served
    name = place.free_name(found.manifest.fingerprint[:SHORT])
    copy(found, place.copies / name, added={})
    return served | {"copy": name}
