"""The published loss of SimCSE, on pooled vectors and through its head."""

from __future__ import annotations

import torch

from tests.training.goldens.golden import Golden, gradients
from training.objectives.base import Views
from training.objectives.contrastive import cosine_logits, info_nce
from training.objectives.simcse import SimCSE, SimCSEParams


def check(golden: Golden, dtype: torch.dtype) -> None:
    temperature, dim = golden.facts["temp"], golden.facts["D"]
    noisy = torch.stack([golden["z1"], golden["z2"]]).requires_grad_()

    bare = SimCSE(SimCSEParams(temperature=temperature, head=False), dim)
    loss = bare(Views(noisy), torch.Generator())["info_nce"]
    (at_views,) = gradients(loss, noisy)
    for reading in ("official", "paper"):
        golden.close(loss, f"{reading}_loss")
        golden.close(at_views[0], f"{reading}_grad_z1")
        golden.close(at_views[1], f"{reading}_grad_z2")

    logits = cosine_logits(noisy[0], noisy[1], temperature)
    golden.close(logits, "official_logits")
    golden.close((info_nce(logits) + info_nce(logits.T)) / 2, "paper_loss_symmetric")

    headed = SimCSE(SimCSEParams(temperature=temperature), dim).to(dtype)
    headed.load_state_dict({"head.0.weight": golden["mlp_weight"], "head.0.bias": golden["mlp_bias"]})
    loss = headed(Views(noisy), torch.Generator())["info_nce"]
    at_views, weight, bias = gradients(loss, noisy, *headed.parameters())
    golden.close(loss, "official_mlp_loss")
    golden.close(at_views[0], "official_mlp_grad_z1")
    golden.close(weight, "official_mlp_grad_weight")
    golden.close(bias, "official_mlp_grad_bias")
