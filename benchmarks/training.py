"""SimCSE steps a second: our step in fp32 and bf16 against sentence-transformers' MultipleNegativesRankingLoss."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from benchmarks.interleave import interleaved, rates
from models.encoder import Encoder
from models.sources import resolve
from training.corpus import open_corpus
from training.loop import adamw
from training.objectives import OBJECTIVES
from training.views import encode_views

BATCH, LENGTH, ROUNDS = 64, 32, 8
BACKBONE = "minilm"


def measure() -> dict[str, Any]:
    """Sentences a second of whole steps (forward, backward, clip, AdamW), batch 64, 32 tokens, the default corpus."""
    batches = list(islice(open_corpus([], held_out=0).batches(BATCH, seed=0), ROUNDS + 1))
    contestants = {
        "ours_fp32": _ours(batches, None),
        "ours_bf16": _ours(batches, torch.bfloat16),
        "sentence_transformers": _peer(batches),
    }
    seconds = interleaved(contestants, ROUNDS)
    return {
        "setting": f"{BACKBONE}, batch {BATCH}, two dropout views, {LENGTH} tokens, {ROUNDS} rounds of one step each",
        "figures": {"sentences": rates(seconds, BATCH, "sentence_transformers")},
    }


def _ours(batches: list[list[str]], autocast: torch.dtype | None) -> Callable[[], None]:
    encoder = Encoder.load(BACKBONE, pooling="cls").train()
    recipe = OBJECTIVES["simcse"]
    objective = recipe.build(recipe.presets[BACKBONE].params, encoder.dim)
    weights = [*encoder.parameters(), *objective.parameters()]
    optimiser = adamw(weights, learning_rate=3e-5, weight_decay=0.0, fused=True)
    rng, turn = torch.Generator().manual_seed(0), iter(batches)

    def step() -> None:
        views, _ = encode_views(encoder, objective.needs, next(turn), max_length=LENGTH, autocast=autocast)
        _update(sum(objective(views, rng).values(), torch.zeros(())), weights, optimiser)

    return step


def _peer(batches: list[list[str]]) -> Callable[[], None]:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(str(resolve(BACKBONE)), device="cpu").train()
    model.max_seq_length = LENGTH
    loss = MultipleNegativesRankingLoss(model)
    weights = list(model.parameters())
    optimiser = adamw(weights, learning_rate=3e-5, weight_decay=0.0, fused=True)
    turn = iter(batches)

    def step() -> None:
        texts = next(turn)
        features = [model.preprocess(texts) for _ in range(2)]
        _update(loss(features, torch.empty(0)), weights, optimiser)

    return step


def _update(loss: torch.Tensor, weights: list[torch.nn.Parameter], optimiser: torch.optim.Optimizer) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    optimiser.step()
