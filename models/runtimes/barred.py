"""Pairs of runtime and precision that a bundle excludes, because its promotion measured a loss of accuracy.

Speed depends on the machine, so each machine measures it. Loss of accuracy depends on the encoder, so the bundle's
exclusions apply on every machine. A wrong exclusion costs speed, but not accuracy.
"""

from __future__ import annotations

import json

from models.bundle import ENGINES, Bundle, BundleError
from models.runtimes import Pair


def barred(bundle: Bundle) -> dict[Pair, str]:
    """Return the reason for each barred pair. Empty for a bundle that was not promoted.

    Raises:
        BundleError: the table of engines is invalid; the message names the file.
    """
    if ENGINES not in bundle.manifest.files:
        return {}
    file = bundle.folder / ENGINES
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["measured"]
        found = {Pair(row["runtime"], row["precision"]): row.get("barred") for row in rows}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{file}: not a table of engines ({type(error).__name__}: {error})") from error
    return {pair: str(why) for pair, why in found.items() if why is not None}
