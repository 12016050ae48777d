"""ConSERT's augmentations of an embedding layer's output, compared with golden values. The keys contain the rates."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.training.goldens.golden import Golden
from training.data.augment import cut_features, cut_tokens, keep_span, shuffle_positions


def check(golden: Golden, dtype: torch.dtype) -> None:
    embedded, mask = golden["embeddings"], golden["attention_mask"].long()
    for key in golden.keys("row_"):
        if key.endswith("__out"):
            order = token_orders(golden, key.replace("out", "shuffled_index"), mask)
            golden.close(cut_tokens(embedded, mask, order, rate_of(key)), key)
    for key in golden.keys("column_"):
        if key.endswith("__out"):
            order = torch.stack([golden[key.replace("out", f"shuffled_index_{i}")] for i in range(len(mask))])
            golden.close(cut_features(embedded, order, rate_of(key)), key)
    for key in golden.keys("span_"):
        if key.endswith("__start"):
            kept = keep_span(mask, golden[key], rate_of(key))
            golden.close(kept, key.replace("start", "attention_mask"))
    if "shuffle__position_ids" in golden:
        positions = torch.arange(mask.shape[1]).expand(mask.shape)
        order = token_orders(golden, "shuffle__perm", mask)
        golden.close(shuffle_positions(positions, order), "shuffle__position_ids")


def rate_of(key: str) -> float:
    """Return the rate in a key, for example .2 in `column_0.2__out`."""
    return float(key.partition("__")[0].partition("_")[2])


def token_orders(golden: Golden, key: str, mask: Tensor) -> Tensor:
    """Return the saved order of each sentence's tokens, followed by its padding, as indices (N, L)."""
    orders = torch.arange(mask.shape[1]).repeat(len(mask), 1)
    for i, count in enumerate(mask.sum(1)):
        orders[i, :count] = golden[f"{key}_{i}"]
    return orders
