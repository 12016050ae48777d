"""The served bundle, and a copy of it if it is no copy yet."""

from __future__ import annotations

from typing import Any

from models.bundle import bundle
from models.bundle.bundle import Bundle, BundleError
from training.promotion.copies import copy
from training.promotion.decision import described
from training.promotion.place import SHORT, Place


def examined(place: Place) -> tuple[dict[str, Any] | None, Bundle | None]:
    """Describe the served bundle for the ledger, and load it. The second item is None if verification fails."""
    if not place.default.exists() and not place.default.is_symlink():
        return None, None
    try:
        found = bundle.load(place.default)
    except BundleError:
        return described(place.default, None, copy=None), None
    return described(place.default, found, copy=place.current()), found


def kept(place: Place, served: dict[str, Any] | None, found: Bundle | None) -> dict[str, Any] | None:
    """Return `served` with the name of its copy.

    A verified bundle without a copy is copied, because a link will replace it.

    Raises:
        BundleError: it has changed since it was loaded.
        OSError: the copy can't be written.
    """
    if served is None or found is None or served["copy"] is not None:
        return served
    name = place.free_name(found.manifest.fingerprint[:SHORT])
    copy(found, place.copies / name, added={})
    return served | {"copy": name}
