"""AdamW and the learning rate over a few steps, by torch and by transformers 4.2.1."""

from __future__ import annotations

import pytest
import torch

from tests.training.goldens.golden import Golden
from training.step import adamw, learning_rate

EPS_OUTSIDE_THE_ROOT = 2.1e-5
"""Difference that the position of eps causes for gradients of 1e-8: the 2e-5 of docs/objectives.md."""


def check(golden: Golden, dtype: torch.dtype) -> None:
    peak = golden.facts["lr"]
    weights = golden.leaf("p0")
    optimiser = adamw([weights], learning_rate=peak, weight_decay=0.0)
    steps, rates = [], []
    for step, gradient in enumerate(golden["grads"]):
        rates.append(learning_rate(peak, step, golden.facts["total_steps"]))
        optimiser.param_groups[0]["lr"] = rates[-1]
        weights.grad = gradient.clone()
        optimiser.step()
        steps.append(weights.detach().clone())
    golden.close(torch.tensor(rates, dtype=torch.float64), "official_lrs")
    golden.close(torch.stack(steps), "official_params_torch")
    expected = golden["official_params_hf421"].numpy()
    assert torch.stack(steps).numpy() == pytest.approx(expected, rel=0, abs=EPS_OUTSIDE_THE_ROOT)
