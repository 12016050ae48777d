"""Division of a batch into passes of similar length, to reduce padding.

The batch and its in-batch negatives stay as the corpus drew them. Only the sentences that are padded together change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PASS_COST = {"cpu": 50}
"""Fixed cost of a pass, by device type, as a number of tokens that take as long to encode.

Values from 25 to 100 do equally well (docs/log.md).

On devices that are missing here, one pass is best.
"""


def by_length(lengths: Sequence[int], *, device: str, most: int | None = None) -> list[list[int]]:
    """Assign each row to one pass: sort by length, and cut where a further pass saves more than it costs.

    `lengths` are in tokens, `device` is a torch device type, `most` the maximum sentences per pass.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    if device not in PASS_COST:
        most = most or max(len(order), 1)
        return [order[start : start + most] for start in range(0, len(order), most)]
    longest = np.array([lengths[row] for row in order])
    return [order[start:end] for start, end in _cuts(longest, PASS_COST[device], most or len(order))]


def _cuts(longest: np.ndarray, cost: int, most: int) -> list[tuple[int, int]]:
    """Find the cheapest cuts of descending lengths.

    A pass costs `cost` plus its number of rows times its longest row.
    """
    size = len(longest)
    least = np.zeros(size + 1)  # least[k] is the minimal cost of the first k rows.
    begin = np.zeros(size + 1, dtype=int)  # begin[k] is the start of their last pass.
    for end in range(1, size + 1):
        starts = np.arange(max(0, end - most), end)
        totals = least[starts] + cost + (end - starts) * longest[starts]
        begin[end] = starts[totals.argmin()]
        least[end] = totals.min()
    cuts = []
    end = size
    while end:
        cuts.append((int(begin[end]), end))
        end = int(begin[end])
    return cuts[::-1]
