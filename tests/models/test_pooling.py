from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.pooling import POOLINGS

GOLDEN_NAMES = {
    "cls": "simcse_head__cls_before_pooler",
    "mean": "simcse_head__avg",
    "first_last": "dclr_first_is_embedding__avg_first_last",
    "first_last_1": "simcse_head__avg_first_last",
    "last2": "simcse_head__avg_top2",
}


@pytest.mark.parametrize("name", POOLINGS)
def test_equals_the_published_code(goldens: Path, name: str) -> None:
    arrays = np.load(goldens / "pooling.npz")
    hidden = [torch.from_numpy(layer) for layer in arrays["hidden_states"]]
    pooled = POOLINGS[name](hidden, torch.from_numpy(arrays["attention_mask"]))
    np.testing.assert_allclose(pooled.numpy(), arrays[GOLDEN_NAMES[name]], rtol=1e-10)


@pytest.mark.parametrize("name", POOLINGS)
def test_equals_a_sum_over_tokens_by_hand(name: str) -> None:
    layers = {"cls": (-1,), "mean": (-1,), "first_last": (0, -1), "first_last_1": (1, -1), "last2": (-2, -1)}[name]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, 3, 5, 2, generator=generator, dtype=torch.float64)
    lengths = [5, 1, 3]
    mask = torch.tensor([[1] * n + [0] * (5 - n) for n in lengths])
    pooled = POOLINGS[name](list(hidden), mask)
    for row, length in enumerate(lengths):
        tokens = 1 if name == "cls" else length
        by_hand = sum(hidden[i, row, t] for i in layers for t in range(tokens)) / (len(layers) * tokens)
        torch.testing.assert_close(pooled[row], by_hand)
