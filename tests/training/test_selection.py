"""What chooses the best weights of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.corpus.corpus import WATCHED, open_corpus
from training.promotion.yardsticks import Unlabelled
from training.selection import by_self_retrieval, by_stsb_dev


def test_an_encoder_that_tells_no_two_texts_apart_is_scored_as_chance(stsb_data: Path) -> None:
    """A run goes on and may recover: one that ended here would be missing from its study."""

    def collapsed(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.ones((len(texts), 4), np.float32)

    assert by_stsb_dev(stsb_data).scores(collapsed)["stsb_dev_spearman"] == 0.0


def test_a_part_of_what_is_held_out_chooses_and_all_of_it_judges(tmp_path: Path) -> None:
    """A promotion asks sentences, too, by which the run was not chosen; neither asks one that was trained on."""
    file = tmp_path / "many.txt"
    file.write_text("".join(f"the {i} has a {i}\n" for i in range(30 * WATCHED)))
    corpus = open_corpus([str(file)])
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        asked.extend(texts)
        return np.random.default_rng(0).standard_normal((len(texts), 4)).astype(np.float32)

    by_self_retrieval(corpus).scores(encode)
    chosen_by = set(asked)
    asked.clear()
    Unlabelled(corpus).judge(encode)
    assert len(chosen_by) == 2 * WATCHED and len(asked) == 2 * len(corpus.census.held_out) == 3 * WATCHED
    assert chosen_by < set(asked)
