"""Barlow Twins with and without artificial rows, and the rank of the correlation, compared with golden values."""

from __future__ import annotations

import torch

from tests.training.goldens.golden import Golden, gradients
from training.objectives.contrastive import barlow_twins, cross_correlation, rank_of_cross_correlation


def check(golden: Golden, dtype: torch.dtype) -> None:
    z1, z2, rows = golden.leaf("z1"), golden["z2"], golden["artificial"]
    off_diagonal = golden.facts["lambda_bt"]
    for artificial, suffix in ((None, ""), (rows, "_artificial")):
        for reading, centred in (("official", True), ("paper", False)):
            correlation = cross_correlation(z1, z2, artificial, centred=centred)
            loss = barlow_twins(correlation, off_diagonal)
            golden.close(loss, f"{reading}_loss{suffix}")
            golden.close(gradients(loss, z1)[0], f"{reading}_grad_z1{suffix}")
            if reading == "paper":
                diagonal = (1 - correlation.diagonal()).square().sum()
                golden.close(loss - 2 * diagonal, f"paper_loss_eq4_literal_sign{suffix}")
    golden.close(rank_of_cross_correlation(z1, z2, centred=True), "rank_C")
    golden.close(rank_of_cross_correlation(z1, z2), "rank_C_uncentred")
    golden.close(rank_of_cross_correlation(z1, z2, rows, centred=True), "rank_C_artificial")
