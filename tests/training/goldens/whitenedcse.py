"""WhitenedCSE: whitening, head and loss, by the published code's thirds, by views, and from a single feature."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.training.goldens.golden import Golden, gradients
from training.objectives.contrastive import MLP
from training.objectives.whitenedcse import interleaved, multi_positive_loss, positive_logits, separated
from training.objectives.whitening import Gradient, group_whitening, shuffled_group_whitening

GRADIENTS: dict[Gradient, str] = {"detached": "detached", "full": "fullgrad"}


def check(golden: Golden, dtype: torch.dtype) -> None:
    rows = golden.leaf("views")  # (N, V, D)
    views, permutations, groups = rows.transpose(0, 1), golden["perms"], golden.facts["num_groups"]
    eps = golden.facts["eps"]

    parts = shuffled_group_whitening(interleaved(views), permutations, groups, eps=eps)
    loss = loss_of(golden, separated(parts))
    for reading in ("official", "transcribed_official"):
        close_rows(golden, parts.flatten(0, 1), f"{reading}_sgw_out")
    golden.close(loss, "official_loss")
    golden.close(gradients(loss, rows)[0], "official_grad_views")

    for gradient, name in GRADIENTS.items():
        white = shuffled_group_whitening(views, permutations, groups, eps=eps, gradient=gradient)
        loss = loss_of(golden, white)
        golden.close(loss, f"paper_loss_viewwise_{name}")
        golden.close(gradients(loss, rows)[0], f"grad_views__paper_viewwise_{name}")
        close_rows(golden, white[0], "paper_sgw_view0")
        for key in golden.keys("paper_loss_lambda_"):
            weights = tuple(map(float, key.removeprefix("paper_loss_lambda_").split("_")))
            golden.close(loss_of(golden, white, weights), key)
    close_rows(golden, group_whitening(views[0], groups, eps=eps), "paper_gw_noshuffle_view0")

    x = rows[:, 0].detach().requires_grad_()
    loss = loss_of(golden, shuffled_group_whitening(x.expand(views.shape), permutations, groups, eps=eps))
    golden.close(loss, "paper_loss_single_feature")
    golden.close(gradients(loss, x)[0], "grad_x__paper_single_feature")


def loss_of(golden: Golden, white: Tensor, weights: tuple[float, ...] | None = None) -> Tensor:
    """Return the loss through the head, by default with equal weights of the positives."""
    head = MLP(white.shape[-1]).to(white.dtype)
    head.load_state_dict({"0.weight": golden["mlp_weight"], "0.bias": golden["mlp_bias"]})
    logits = positive_logits(head(white), golden.facts["temp"])
    return multi_positive_loss(logits, weights or (1.0,) * len(logits), "L1")


def close_rows(golden: Golden, rows: Tensor, key: str) -> None:
    """Compare the first rows, because a large golden file contains only these."""
    if key in golden:
        golden.close(rows[: len(golden[key])], key)
