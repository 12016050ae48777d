"""What a bundle says of the pairs that it is not to be served by: promotion judged them on people's scores.

A speed is of one machine and each measures its own. That a pair drifts is of the encoder, so it is believed anywhere:
to be wrong about it costs speed, not answers.
"""

from __future__ import annotations

import json

from models.bundle import ENGINES, Bundle, BundleError
from models.runtimes import Pair


def barred(bundle: Bundle) -> dict[Pair, str]:
    """Why, by pair; empty for a bundle that nobody promoted.

    Raises:
        BundleError: its table of engines is none; names the file.
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
