"""The published loss of GS-InfoNCE with its noise, for any scale of the noise."""

from __future__ import annotations

import torch

from tests.training.goldens.golden import Golden, gradients
from training.objectives.contrastive import cosine_logits, info_nce
from training.objectives.gs_infonce import smoothed_logits


def check(golden: Golden, dtype: torch.dtype) -> None:
    z1, z2, noise = golden.leaf("z1"), golden.leaf("z2"), golden["noise_unit"]
    temperature, weight = golden.facts["temp"], golden.facts["lam"]
    logits = smoothed_logits(z1, z2, noise, temperature=temperature, noise_weight=weight)
    loss = info_nce(logits)
    at_z1, at_z2 = gradients(loss, z1, z2)
    golden.close(loss, "official_loss", "paper_loss", "official_loss_std0.1")
    golden.close(at_z1, "official_grad_z1", "paper_grad_z1")
    golden.close(at_z2, "official_grad_z2", "paper_grad_z2")

    halved = smoothed_logits(z1, z2, noise, temperature=temperature, noise_weight=weight / 2)
    golden.close(info_nce(halved), "paper_loss_lambda0_5")

    # As equation 5 is printed, the denominator's sum has the anchors instead of their positives.
    printed = smoothed_logits(z1, z1, noise, temperature=temperature, noise_weight=weight)
    positives = cosine_logits(z1, z2, temperature).diagonal()
    golden.close((printed.logsumexp(dim=1) - positives).mean(), "paper_loss_eq5_literal_hj")
