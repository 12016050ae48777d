from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.encoder.pooling import POOLINGS, parts, pool

GOLDEN_NAMES = {
    "cls": "simcse_head__cls_before_pooler",
    "mean": "simcse_head__avg",
    "first_last": "dclr_first_is_embedding__avg_first_last",
    "first_last_1": "simcse_head__avg_first_last",
    "last2": "simcse_head__avg_top2",
}


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_equals_the_published_code(goldens: Path, name: str) -> None:
    arrays = np.load(goldens / "pooling.npz")
    hidden = [torch.from_numpy(layer) for layer in arrays["hidden_states"]]
    pooled = POOLINGS[name](hidden, torch.from_numpy(arrays["attention_mask"]))
    np.testing.assert_allclose(pooled.numpy(), arrays[GOLDEN_NAMES[name]], rtol=1e-10)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "lasttoken+max+mean"]
)
def test_equals_sentence_transformers(name: str) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling

    hidden = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 2
    mask = torch.tensor([[1] * n + [0] * (5 - n) for n in (5, 1, 3)])
    theirs = Pooling(2, pooling_mode=name.split("+"))({"token_embeddings": hidden, "attention_mask": mask})
    torch.testing.assert_close(pool(name, [hidden], mask), theirs["sentence_embedding"])


@pytest.mark.parametrize("name", ["", "mean+", "average", "mean+last2"])
def test_what_is_no_pooling_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"pooling '.*'"):
        parts(name)
