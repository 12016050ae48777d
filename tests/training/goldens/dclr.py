"""DCLR's ascent, weights and losses, as published and as in the paper, for two given views of the judge."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.training.goldens.golden import Golden, gradients
from training.objectives.contrastive import ascend, cosine_logits, info_nce
from training.objectives.dclr import binary_cross_entropy, instance_weights


def check(golden: Golden, dtype: torch.dtype) -> None:
    z1, z2, noise = golden.leaf("z1"), golden.leaf("z2"), golden["noise"]
    judged, threshold = (golden["z1_fix"], golden["z2_fix"]), golden.facts["phi"]
    temperature = golden.facts["temp"]
    ascent = {"steps": golden.facts["steps"], "rate": golden.facts["beta"], "temperature": golden.facts["tau_u"]}

    def logits(*negatives: Tensor) -> Tensor:
        return cosine_logits(z1, torch.cat([z2, *negatives]), temperature)

    def close(loss: Tensor, key: str, *gradient_keys: str) -> None:
        golden.close(loss, key)
        for gradient, gradient_key in zip(gradients(loss, z1, z2), gradient_keys, strict=False):
            golden.close(gradient, gradient_key)

    moved = ascend(noise, z1, sentences=z2, **ascent)
    weights = instance_weights(*judged, moved, threshold)
    self_weights = instance_weights(z1, z2, moved, threshold)
    golden.close(moved, "official_noise_after_pgd", "transcribed_noise_after_pgd_code_den")
    golden.close((moved - noise).norm(dim=1).mean(), "pgd_displacement_norm_mean")
    golden.close(logits(moved), "official_logits")
    published = binary_cross_entropy(logits(moved) * weights)
    close(published, "official_loss", "official_grad_z1", "official_grad_z2")
    golden.close(published, "transcribed_official_loss")
    random = binary_cross_entropy(logits(noise) * weights)
    close(random, "official_loss_random_noise", "official_grad_z1_random_noise", "official_grad_z2_random_noise")
    close(binary_cross_entropy(logits(moved) * self_weights), "official_loss_self_weighting")

    moved = ascend(noise, z1, **ascent)
    weights = instance_weights(*judged, moved, threshold)
    self_weights = instance_weights(z1, z2, moved, threshold)
    golden.close(moved, "paper_noise_after_pgd")
    golden.close(weights[:, : len(z1)], "alpha_in_batch")
    weighted = logits(moved) + weights.log()
    close(info_nce(weighted), "paper_loss", "grad_z1__paper_loss", "grad_z2__paper_loss")
    close(info_nce(logits(noise) + weights.log()), "paper_loss_random_noise")
    close(info_nce(logits() + weights[:, : len(z1)].log()), "paper_loss_no_noise")
    close(info_nce(logits(moved)), "paper_loss_no_weighting")
    close(info_nce(logits(moved) + self_weights.log()), "paper_loss_self_weighting")

    # As equation 6 is printed, the positive is not in the denominator.
    positives = torch.eye(*weighted.shape, dtype=torch.bool)
    printed = (weighted.masked_fill(positives, -torch.inf).logsumexp(dim=1) - weighted.diagonal()).mean()
    close(printed, "paper_loss_eq6_literal", "grad_z1__paper_loss_eq6_literal", "grad_z2__paper_loss_eq6_literal")
