"""Encoders like tuned ones, without a training run."""

from __future__ import annotations

from pathlib import Path

import torch

from models.encoder.encoder import Encoder


def shaken(backbone: Path, seed: int) -> Encoder:
    """Return an encoder with mean pooling whose weights are slightly changed."""
    encoder = Encoder.load(backbone, pooling="mean")
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in encoder.backbone.parameters():
            weights.add_(torch.randn(weights.shape, generator=draw), alpha=0.1)
    return encoder
