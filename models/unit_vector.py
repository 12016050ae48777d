"""The exported form of an encoder: a module whose output is the unit vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from models.encoder import Encoder

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SHORTEST = 1e-12
"""Lower bound of the length by which a vector is divided, so that a zero vector stays zero."""


class UnitVector(nn.Module):
    """Exported module: token ids and mask (N, L) to unit vectors (N, D) and their original norms (N,)."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def config(self) -> PretrainedConfig:
        """The backbone's configuration, which optimum reads from the exported module."""
        return self.encoder.backbone.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        pooled = self.encoder(input_ids, attention_mask)
        norm = pooled.norm(dim=-1)
        return pooled / norm.clamp_min(SHORTEST).unsqueeze(-1), norm
