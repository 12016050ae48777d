"""Pairs that a bundle excludes from serving, since its promotion measured that they lose accuracy.

Speed depends on the machine, so each machine measures its own. Loss of accuracy depends on the encoder, so the bundle's
word counts everywhere: an error costs speed, not accuracy.
"""

from __future__ import annotations

import json

from models.bundle import ENGINES, Bundle, BundleError
from models.runtimes import Pair


def barred(bundle: Bundle) -> dict[Pair, str]:
    """Return the reason for each barred pair; empty for a bundle that was not promoted.

    Raises:
        BundleError: the table of engines is invalid; names the file.
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
