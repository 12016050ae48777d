"""A batch in passes of like length: less padding, the same batch.

The batch stays what the corpus drew, and so do its in-batch negatives; what changes is only which of its sentences are
padded together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PASS_COST = {"cpu": 50}
"""What a pass costs besides its tokens, in sentence-tokens; 25 to 100 do equally well (docs/log.md).

On other devices one pass is best.
"""


def by_length(lengths: Sequence[int], *, device: str, most: int | None = None) -> list[list[int]]:
    """The rows of each pass, every row in one of them: sorted by length, cut where a pass saves more than it costs.

    `lengths` are in tokens, `device` a torch device type, `most` the number of sentences a pass may have.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    if device not in PASS_COST:
        most = most or max(len(order), 1)
        return [order[start : start + most] for start in range(0, len(order), most)]
    longest = np.array([lengths[row] for row in order])
    return [order[start:end] for start, end in _cuts(longest, PASS_COST[device], most or len(order))]


def _cuts(longest: np.ndarray, cost: int, most: int) -> list[tuple[int, int]]:
    """The cheapest way to cut descending lengths: a pass costs `cost` and its rows times its first row's length."""
    size = len(longest)
    least = np.zeros(size + 1)  # what the first so many rows cost at least
    begin = np.zeros(size + 1, dtype=int)  # where their last pass begins
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
