"""What chooses the best weights of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.selection import by_stsb_dev


def test_an_encoder_that_tells_no_two_texts_apart_is_scored_as_chance(stsb_data: Path) -> None:
    """A run goes on and may recover: one that ended here would be missing from its study."""

    def collapsed(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.ones((len(texts), 4), np.float32)

    assert by_stsb_dev(stsb_data).scores(collapsed)["stsb_dev_spearman"] == 0.0
