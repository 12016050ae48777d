"""WhitenedCSE's losses for several positives: equation 7, and the interpretations of equation 8."""

from __future__ import annotations

import torch

from tests.training.goldens.golden import Golden, gradients
from training.objectives.whitenedcse import MultiPositive, multi_positive_loss, positive_logits

READINGS: dict[str, MultiPositive] = {
    "L1": "L1",
    "L2_eq8_literal": "L2-eq8",
    "L2_no_minus": "L2-no-minus",
    "L2_intended": "L2-intended",
}


def check(golden: Golden, dtype: torch.dtype) -> None:
    anchors, positives = golden.leaf("h"), golden.leaf("h_pos")
    logits = positive_logits(torch.cat([anchors[None], positives]), golden.facts["temp"])
    lam = golden["lam"].tolist()
    for key in golden.keys("paper_"):
        reading, _, last = key.removeprefix("paper_").rpartition("_lam")
        weights = (*lam[:-1], float(last))
        loss = multi_positive_loss(logits, weights, READINGS[reading])
        at_anchors, at_positives = gradients(loss, anchors, positives)
        golden.close(loss, key)
        golden.close(at_anchors, f"grad_h__{reading}_lam{last}")
        golden.close(at_positives, f"grad_pos__{reading}_lam{last}")
